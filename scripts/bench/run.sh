#!/usr/bin/env bash
# Measures what has a budget, as tables and as build/bench/*.json: scripts/bench/run.sh PROFILE [size] [write] [erase] [boot].
# Without names everything is measured.
. "$(dirname "$0")/../lib.sh"

profile=${1:-virt}
shift || true
[ $# -gt 0 ] || set -- size write erase boot
mkdir -p build/bench
[ -f "build/$profile/manifest.json" ] || die "there is no build/$profile/manifest.json: run make image"

for part in "$@"; do
    case $part in
    size) python3 scripts/bench/size.py "build/$profile/manifest.json" build/bench ;;
    write)
        cargo build --quiet --profile image -p ferric-disk --bin image_write
        python3 scripts/bench/write.py target/image/image_write build/bench
        ;;
    erase)
        cargo build --quiet --profile image -p ferric-disk --bin erase_disk
        python3 scripts/bench/erase.py target/image/erase_disk build/bench
        ;;
    boot) python3 scripts/bench/boot.py build/bench ;;
    *) die "$part is no measurement; there are size, write, erase and boot" ;;
    esac
done
