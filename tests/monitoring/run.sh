#!/usr/bin/env bash
# What Prometheus itself makes of kvpin: its linter over a scrape, its checker and its tests over the alerts in conf/monitoring.
#
#   tests/monitoring/run.sh
#
# Installs promtool with apt, as root, where it is missing.
#
# KVPIN_BIN  the kvpin to test  default: target/debug/kvpin
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kvpin=$(realpath -m "${KVPIN_BIN:-$here/../../target/debug/kvpin}")
dir=$(mktemp -d)
pids=()

main() {
  trap clean_up EXIT
  install_tools
  rules
  serve
  talk
  scrape
}

install_tools() {
  [[ -x $kvpin ]] || { echo "there is no kvpin at $kvpin: run cargo build, or say with KVPIN_BIN where it is" >&2; exit 1; }
  local missing=()
  command -v promtool >/dev/null || missing+=(prometheus)
  command -v curl >/dev/null || missing+=(curl)
  if ((${#missing[@]})); then
    apt-get update -qq
    # The package would start a server, which nobody has asked for.
    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  fi
}

rules() {
  cd "$here/../../conf/monitoring"
  promtool check rules alerts.yaml
  promtool test rules alerts_test.yaml
  python3 -m json.tool grafana.json >/dev/null
}

serve() {
  begin replica replica --port 0 --model tiny --time-scale 50
  wait_for grep -qE '127\.0\.0\.1:[0-9]+' "$dir/replica.out" "$dir/replica.log"
  local replica
  replica=$(cat "$dir/replica.out" "$dir/replica.log" | grep -oE '127\.0\.0\.1:[0-9]+' | head -n 1)
  printf 'listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nmodels: {tiny: {max_num_seqs: 32, replicas: ["http://%s"]}}\n' "$replica" \
    >"$dir/kvpin.yaml"
  begin kvpin run --config "$dir/kvpin.yaml"
  wait_for grep -q 'admin on' "$dir/kvpin.log"
  listen=$(sed -n 's/.* listening on \(127[^ ]*\)$/\1/p' "$dir/kvpin.log")
  admin=$(sed -n 's/.* admin on \(127[^ ]*\)$/\1/p' "$dir/kvpin.log")
  wait_for is_up
}

# Turns, side calls and refusals, so that every kind of series is there.
talk() {
  local turn='{"model":"tiny","stream":true,"stream_options":{"include_usage":true},"max_tokens":8,"messages":[{"role":"user","content":"Say something."}]}'
  for id in a b a a; do
    curl -sSf -o /dev/null -H "session-id: $id" --json "$turn" "http://$listen/v1/chat/completions"
  done
  curl -sS -o /dev/null --json '{"model":"none"}' "http://$listen/v1/chat/completions"
}

scrape() {
  curl -sSf "http://$admin/metrics" >"$dir/scrape"
  # It says what is wrong with it on its output, and fails.
  promtool check metrics <"$dir/scrape"
  local family
  for family in kvpin_build_info kvpin_overhead_seconds_count process_cpu_seconds_total process_resident_memory_bytes \
    process_open_fds process_max_fds process_start_time_seconds kvpin_scrape_age_seconds; do
    grep -qE "^$family[{ ]" "$dir/scrape" || { echo "no $family in the scrape" >&2; exit 1; }
  done
  echo "$(grep -c '^# TYPE' "$dir/scrape") families, $(grep -vc '^#' "$dir/scrape") series: promtool finds nothing wrong with them"
}

begin() {
  local name=$1
  shift
  "$kvpin" "$@" >"$dir/$name.out" 2>"$dir/$name.log" &
  pids+=($!)
}

wait_for() {
  local deadline=$((SECONDS + 30))
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || { echo "never came true: $*" >&2; exit 1; }
    sleep 0.05
  done
}

is_up() { curl -sf "http://$admin/metrics" | grep -q 'kvpin_replica_up{.*} 1'; }

clean_up() {
  local status=$? pid
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  ((status == 0)) || tail -n 30 "$dir"/*.log 2>/dev/null
  rm -rf "$dir"
}

main
