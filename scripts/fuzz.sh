#!/usr/bin/env bash
# Fuzzes what reads foreign bytes, guided by coverage: scripts/fuzz.sh TARGET SECONDS [ARGUMENT of libFuzzer]...
# Without arguments it lists the targets. Needs a C++ compiler (g++, or CXX) and qemu-img; writes to build/fuzz/ only.
# An input that crashes or takes more than 5 s ends the run and is kept beside the corpus. The fuzzer itself keeps all inputs
# in memory; afterwards those worth keeping are run once more, with no more than 256 MiB for everything.
. "$(dirname "$0")/lib.sh"

FUZZ=$ROOT/build/fuzz
if [ $# -lt 2 ]; then
    sed -n 's/^name = "\(.*\)"$/\1/p' agent/fuzz/Cargo.toml | tail -n +2
    die "usage: scripts/fuzz.sh TARGET SECONDS [ARGUMENT]..."
fi
target=$1 seconds=$2
shift 2

say "building $target"
# What cargo-fuzz gives the compiler, but for the address sanitizer, which needs a nightly one; C code is not covered.
flags="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
 -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
RUSTFLAGS=${flags//$'\n'/} cargo build --quiet --release --locked --manifest-path agent/fuzz/Cargo.toml \
    --target x86_64-unknown-linux-gnu --target-dir "$FUZZ/target" --bin "$target" ${FUZZ_JOBS:+-j "$FUZZ_JOBS"}

say "seeds"
mkdir -p "$FUZZ/$target/corpus" "$FUZZ/$target/found"
python3 scripts/images/seeds.py "$target" "$FUZZ/$target/seeds"

say "fuzzing $target for $seconds s"
cd "$FUZZ/$target"
export MALLOC_ARENA_MAX=2
[ -w /dev/shm ] && export TMPDIR=/dev/shm # the disks are files
program=$FUZZ/target/x86_64-unknown-linux-gnu/release/$target
"$program" corpus seeds -artifact_prefix=found/ -max_total_time="$seconds" -timeout=5 -rss_limit_mb=512 -max_len=131072 \
    -use_value_profile=1 -print_final_stats=1 "$@"
exec "$program" corpus seeds -artifact_prefix=found/ -runs=0 -timeout=5 -rss_limit_mb=256 -print_final_stats=1
