#!/usr/bin/env bash
# Runs one level of tests: scripts/test.sh unit|vm|ironic. A test that cannot run here says so: in the first two levels
# it prints "SKIPPED: NAME: REASON" on its own line, past cargo's capturing of output (write to std::io::stderr(), not
# with eprintln!); the third counts its own.
. "$(dirname "$0")/lib.sh"

# The tests with Ironic end when cargo dies; this has cargo end when make dies.
with_make() {
    if [ -n "${MAKELEVEL:-}" ]; then exec setpriv --pdeathsig TERM -- "$@"; else exec "$@"; fi
}

case ${1:-} in
unit) exec cargo test --quiet --no-fail-fast ;;
vm) exec cargo test -p ferric-tests --lib --test vm --no-fail-fast ;;
ironic) with_make cargo test -p ferric-tests --test ironic ;;
*) die "usage: scripts/test.sh unit|vm|ironic" ;;
esac
