#!/usr/bin/env bash
# Runs the tests against the real vLLM: installs it if it is not there yet, then starts everything that they need.
#
#   tests/vllm/run.sh [PYTEST ARGUMENTS]
#
# KVPIN_BIN       the kvpin to test        default: target/debug/kvpin
# KVPIN_VLLM_DIR  where vLLM is or will be  default: ~/.cache/kvpin-vllm
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export KVPIN_VLLM_DIR=${KVPIN_VLLM_DIR:-$HOME/.cache/kvpin-vllm}
export KVPIN_BIN=${KVPIN_BIN:-$here/../../target/debug/kvpin}

if [[ ! -x $KVPIN_BIN ]]; then
  echo "there is no kvpin at $KVPIN_BIN: run cargo build, or say with KVPIN_BIN where it is" >&2
  exit 1
fi
"$here/setup.sh" "$KVPIN_VLLM_DIR"
exec "$KVPIN_VLLM_DIR/venv/bin/python" -m pytest -p no:cacheprovider --capture=sys -v -rP "$@" "$here"
