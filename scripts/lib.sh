# Shared by the scripts beside it: source it first. Leaves the shell in the checkout's root.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT=$PWD
VENV=$ROOT/build/venv
MUSL=x86_64-unknown-linux-musl

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

have_cargo() { command -v cargo >/dev/null && command -v rustc >/dev/null; }

# Whether the everyday toolchain can make static binaries as it is.
have_musl() { have_cargo && [ -d "$(rustc --print sysroot)/lib/rustlib/$MUSL" ]; }
