#!/usr/bin/env bash
# TLS and HTTP/2 as other programs see them: openssl, curl, nghttp2 and sslscan against kvpin with certificates of every kind, in
# front of a simulated replica, and of another kvpin that plays a replica with TLS. Installs what is missing with apt, as root.
#
#   tests/edge/run.sh
#
# KVPIN_BIN  the kvpin to test  default: target/debug/kvpin
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kvpin=$(realpath -m "${KVPIN_BIN:-$here/../../target/debug/kvpin}")
dir=$(mktemp -d)
pids=()
failed=0
readonly host=gpu.test

main() {
  trap clean_up EXIT
  install_tools
  # shellcheck source=tests/edge/stage.sh
  source "$here/stage.sh"
  # shellcheck source=tests/edge/facts.sh
  source "$here/facts.sh"
  make_certificates
  set_stage
  versions_and_ciphers
  what_is_shown
  who_gets_in
  scanned
  turns
  http2_under_load
  renewed
  replicas_with_tls
  echo "facts that did not hold: $failed"
  exit $((failed > 0))
}

install_tools() {
  [[ -x $kvpin ]] || { echo "there is no kvpin at $kvpin: run cargo build, or say with KVPIN_BIN where it is" >&2; exit 1; }
  local missing=()
  command -v openssl >/dev/null || missing+=(openssl)
  command -v curl >/dev/null || missing+=(curl)
  command -v sslscan >/dev/null || missing+=(sslscan)
  command -v h2load >/dev/null || missing+=(nghttp2-client)
  if ((${#missing[@]})); then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  fi
}

# Runs a command that has to succeed, or that has to fail after `!`. What it says is shown only if it doesn't.
fact() {
  local said what=$1 wanted=0 status=0
  shift
  [[ $1 != "!" ]] || { wanted=1; shift; }
  said=$("$@" 2>&1) || status=1
  if ((status == wanted)); then
    echo "ok    $what"
  else
    failed=$((failed + 1))
    printf 'FAILS %s\n      %s\n%s\n' "$what" "$*" "$said"
  fi
}

clean_up() {
  local status=$? pid
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  ((status == 0)) || tail -n 30 "$dir"/{edge,trusting,doubting}.log 2>/dev/null
  rm -rf "$dir"
}

main
