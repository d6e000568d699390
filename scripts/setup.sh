#!/usr/bin/env bash
# Installs what building and testing need and this machine lacks. Quick and silent when nothing is missing.
. "$(dirname "$0")/lib.sh"

wanted_packages() {
    local when="always"
    have_cargo || when="$when no-cargo"
    have_musl || when="$when no-musl"
    local name condition
    while read -r name condition; do
        case $name in '' | '#'*) continue ;; esac
        case " $when " in *" $condition "*) echo "$name" ;; esac
    done <scripts/packages.txt | sort -u
}

missing_packages() {
    command -v dpkg-query >/dev/null || die "no dpkg here: install what scripts/packages.txt lists, then set SETUP=no"
    local wanted
    wanted=$(wanted_packages)
    # shellcheck disable=SC2086 # one argument a package
    comm -23 <(echo "$wanted") <(dpkg-query -W -f '${db:Status-Status} ${Package}\n' $wanted 2>/dev/null |
        sed -n 's/^installed //p' | sort -u)
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# The image builder asks apt for the kernel package, so apt's lists must be there too.
install_packages() {
    local missing
    missing=$(missing_packages)
    if [ -z "$missing" ] && compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null; then return; fi
    mkdir -p build
    say "apt-get update"
    as_root apt-get -qq update >build/setup.log 2>&1 || { cat build/setup.log >&2; die "apt-get update failed"; }
    [ -n "$missing" ] || return 0
    say "installing" $missing
    # shellcheck disable=SC2086 # one argument a package
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends $missing \
        >build/setup.log 2>&1 </dev/null || { cat build/setup.log >&2; die "apt-get install failed"; }
}

install_venv() {
    if cmp -s scripts/requirements.txt "$VENV/installed.txt" && "$VENV/bin/python3" -c '' 2>/dev/null; then return; fi
    say "installing the programs of scripts/requirements.txt into build/venv"
    rm -rf "$VENV"
    python3 -m venv "$VENV"
    "$VENV/bin/pip" install --quiet --disable-pip-version-check --requirement scripts/requirements.txt
    cp scripts/requirements.txt "$VENV/installed.txt"
}

install_packages
install_venv
