#!/usr/bin/env bash
# Builds the Debian package into target/debian: bash packaging/build.sh [OPTION FOR cargo deb]...
#
# It needs cargo-deb. The program, unless it is there, is built as for a release.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly target=${CARGO_TARGET_DIR:-target}
readonly kvpin=$target/release/kvpin made=target/package

cargo build --release --locked
# Man pages and completions are made from the command line as the program has it.
rm -rf "$made"
mkdir -p "$made/man" "$made/completions"
"$kvpin" man "$made/man"
"$kvpin" completions bash >"$made/completions/kvpin"
"$kvpin" completions zsh >"$made/completions/_kvpin"
"$kvpin" completions fish >"$made/completions/kvpin.fish"
cargo deb --no-build --locked "$@"
