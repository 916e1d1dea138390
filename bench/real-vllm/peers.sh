#!/usr/bin/env bash
# The same work for kvpin and for other balancers of vLLM, each in its best sticky configuration, in front of the same four real
# servers of one engine each. Installs the others (pip, 300 MB) if they are not there yet.
#
#   bench/real-vllm/peers.sh [-- ARGUMENTS OF kvpin bench]
#
# KVPIN_PEERS_DIR  where they are or will be   default: ~/.cache/kvpin-peers
# What else it takes: see run.sh.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${KVPIN_PEERS_DIR:-$HOME/.cache/kvpin-peers}
readonly vllm_router=vllm-router==0.1.17 smg=smg==1.13.0

for wanted in "$vllm_router" "$smg"; do
  venv=$folder/$wanted
  if [[ ! -f $venv/installed ]]; then
    echo "installing $wanted" >&2
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir "$wanted"
    touch "$venv/installed"
  fi
done

# Both know a session by x-session-id: the one places new sessions by load and keeps them, the other fills the replicas evenly.
common='--host 127.0.0.1 --port {port} --prometheus-port {metrics_port} --worker-urls {urls}'
exec "$here/run.sh" --separate 4 \
  --peer "vllm-router=$folder/$vllm_router/bin/vllm-router $common --policy sticky_least_loaded" \
  --peer "smg=$folder/$smg/bin/smg launch $common --policy manual --assignment-mode min_group --disable-tokenizer-autoload --routing-key-headers x-session-id" \
  "$@"
