#!/usr/bin/env bash
# Builds an agent as one static program: scripts/agent.sh [CRATE-DIRECTORY [RESULT]], by default build/ferric-agent.
#
# Zig is linker and C compiler, because it brings musl and an unwinder along. With musl-gcc instead, std's own
# unwinder comes from libgcc, and every panic, caught or not, ends the process.
. "$(dirname "$0")/lib.sh"

crate=${1:-agent}
result=${2:-build/ferric-agent}
[ -f "$crate/Cargo.toml" ] || die "AGENT=$crate: there is no Cargo.toml"
arguments=(--manifest-path "$crate/Cargo.toml" --target "$MUSL" --profile image --bins)

zig=("$VENV"/lib/python3*/site-packages/ziglang/zig)
export CARGO_ZIGBUILD_ZIG_PATH=${zig[0]}
export CARGO_ZIGBUILD_CACHE_DIR=$ROOT/build/cache/zigbuild ZIG_GLOBAL_CACHE_DIR=$ROOT/build/cache/zig
export CARGO_TARGET_DIR=$ROOT/build/target-musl
# Panic messages name source files; where the checkout and cargo's home are on this machine is nobody's business, and
# without it two machines build the same bytes.
export RUSTFLAGS="--remap-path-prefix=$ROOT=/ferric --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"

if ! have_musl; then
    # This toolchain has no musl std and none can be fetched, so it is built from Debian's source package, with the
    # compiler of the same version. RUSTC_BOOTSTRAP allows the unstable -Z option on that stable compiler.
    export PATH=/usr/bin:$PATH RUSTC_BOOTSTRAP=1 RUSTFLAGS="$RUSTFLAGS -C link-self-contained=no"
    unset RUSTUP_TOOLCHAIN RUSTC CARGO
    # No "backtrace" feature: without symbols there is nothing to print, and the printer takes 200 kB.
    arguments+=(-Z "build-std=std,panic_unwind" -Z "build-std-features=panic-unwind,optimize_for_size")
fi

# cargo tells where the program is; what a person should read goes to stderr as usual.
messages=$("$VENV/bin/cargo-zigbuild" zigbuild "${arguments[@]}" --message-format=json-render-diagnostics)
programs=$(grep -o '"executable":"[^"]*"' <<<"$messages" | cut -d'"' -f4 | sort -u) || true
[ -n "$programs" ] || die "$crate builds no program: it needs a src/main.rs"
[ "$(wc -l <<<"$programs")" = 1 ] || die "$crate builds several programs, an agent crate must build one: ${programs//$'\n'/ }"
cmp -s "$programs" "$result" || cp "$programs" "$result"
