#!/usr/bin/env bash
# Runs `kvpin bench` on the real vLLM (its CPU build, no GPU needed): starts one server with four data-parallel ranks, kvpin in
# front of it, and ends both. vLLM is installed by ../../tests/vllm/setup.sh if it is not there yet.
#
#   bench/real-vllm/run.sh [OPTIONS] [-- ARGUMENTS OF kvpin bench]      OPTIONS: run.sh --help
#
# KVPIN_BIN       the kvpin to measure       default: target/release/kvpin
# KVPIN_VLLM_DIR  where vLLM is or will be   default: ~/.cache/kvpin-vllm
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export KVPIN_VLLM_DIR=${KVPIN_VLLM_DIR:-$HOME/.cache/kvpin-vllm}
export KVPIN_BIN=${KVPIN_BIN:-$here/../../target/release/kvpin}
"$here/../../tests/vllm/setup.sh" "$KVPIN_VLLM_DIR" >&2
exec "$KVPIN_VLLM_DIR/venv/bin/python" -B "$here/run.py" "$@"
