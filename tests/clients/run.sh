#!/usr/bin/env bash
# Runs Claude Code, Codex and OpenCode against kvpin in front of simulated replicas, and where the real vLLM is installed
# (tests/vllm/setup.sh) in front of that too: installs the clients if they are not there yet, then tests them in a network
# of their own. Nothing that they try to send anywhere else leaves it.
#
#   tests/clients/run.sh [PYTEST ARGUMENTS]
#
# KVPIN_BIN                the kvpin to test                   default: target/debug/kvpin
# KVPIN_CLIENTS_DIR        where the clients are or will be    default: ~/.cache/kvpin-clients
# KVPIN_VLLM_DIR           where the real vLLM is, if it is    default: ~/.cache/kvpin-vllm
# KVPIN_CLIENTS_REAL_VLLM  1: a real vLLM that is not there is a failure, and not skipped
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
clients=${KVPIN_CLIENTS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/kvpin-clients}
vllm=$(realpath -m "${KVPIN_VLLM_DIR:-$HOME/.cache/kvpin-vllm}")
kvpin=$(realpath -m "${KVPIN_BIN:-$here/../../target/debug/kvpin}")

if [[ ! -x $kvpin ]]; then
  echo "there is no kvpin at $kvpin: run cargo build, or say with KVPIN_BIN where it is" >&2
  exit 1
fi
"$here/setup.sh" "$clients"
clients=$(realpath "$clients")

# Root may make a network namespace; anyone else becomes root of a user namespace first.
own_network=(unshare --net)
((EUID == 0)) || own_network=(unshare --map-root-user --net)
if ! problem=$("${own_network[@]}" true 2>&1); then
  echo "the tests of the real clients need a network namespace, and '${own_network[*]}' can't make one: ${problem}" >&2
  echo "install util-linux if unshare is missing; else run as root, or allow user namespaces" >&2
  exit 1
fi

# pytest calls its folders after the user, and everyone is root in there.
mkdir -p "$clients/runs"
exec "${own_network[@]}" env -i \
  PATH="$(dirname "$(command -v node)"):/usr/local/bin:/usr/bin:/bin" HOME="$HOME" LANG=C.UTF-8 \
  PYTEST_DEBUG_TEMPROOT="$clients/runs" KVPIN_BIN="$kvpin" KVPIN_CLIENTS_DIR="$clients" \
  KVPIN_VLLM_DIR="$vllm" KVPIN_CLIENTS_REAL_VLLM="${KVPIN_CLIENTS_REAL_VLLM:-}" \
  "$clients/venv/bin/python" -B -m pytest -p no:cacheprovider --capture=sys -v -rPs "$@" "$here"
