#!/usr/bin/env bash
# Runs one level of tests: scripts/test.sh unit|vm|ironic. A test that cannot run here prints "SKIPPED: NAME: REASON"
# on its own line, past cargo's capturing of output (write to std::io::stderr(), not with eprintln!).
. "$(dirname "$0")/lib.sh"

case ${1:-} in
unit) exec cargo test --quiet --no-fail-fast ;;
vm) exec cargo test -p ferric-tests --lib --test vm --no-fail-fast ;;
ironic) exec cargo test -p ferric-tests --test ironic ;;
*) die "usage: scripts/test.sh unit|vm|ironic" ;;
esac
