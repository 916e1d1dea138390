# What the facts are tried on: an authority and its certificates, a simulated replica, and the kvpin under test.

# make_certificate NAME AUTHORITY KEY-ALGORITHM SUBJECT-ALTERNATIVE-NAMES
make_certificate() {
  local name=$1 authority=$2 algorithm=$3 names=$4 key=()
  case $algorithm in
    ec) key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1) ;;
    rsa) key=(-newkey rsa:2048) ;;
  esac
  openssl req "${key[@]}" -nodes -keyout "$dir/$name.key" -out "$dir/$name.csr" -subj "/CN=$name" 2>>"$dir/openssl.log"
  openssl x509 -req -in "$dir/$name.csr" -CA "$dir/$authority.pem" -CAkey "$dir/$authority.key" -days 30 \
    -extfile <(echo "subjectAltName=$names") -out "$dir/$name.pem" 2>>"$dir/openssl.log"
}

make_authority() {
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj "/CN=$1" \
    -keyout "$dir/$1.key" -out "$dir/$1.pem" 2>>"$dir/openssl.log"
}

make_certificates() {
  make_authority ca
  make_authority stranger
  make_certificate rsa ca rsa "DNS:$host"
  make_certificate ec ca ec "DNS:$host"
  make_certificate wild ca ec "DNS:*.lab.test"
  make_certificate replica ca ec "IP:127.0.0.1"
  make_certificate client ca ec "DNS:client.test"
  make_certificate unwanted stranger ec "DNS:client.test"
}

# begin NAME ARGUMENTS...: runs kvpin in the background, with a log of its own.
begin() {
  local name=$1
  shift
  "$kvpin" "$@" >"$dir/$name.out" 2>"$dir/$name.log" &
  pids+=($!)
}

# wait_for COMMAND...: until it succeeds.
wait_for() {
  local deadline=$((SECONDS + 30))
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || { echo "never came true: $*" >&2; exit 1; }
    sleep 0.05
  done
}

# The addresses that a kvpin listens on, one a line.
addresses() { sed -n 's/.* listening on \(127[^ ]*\)$/\1/p' "$dir/$1.log"; }
admin() { sed -n 's/.* admin on \(127[^ ]*\)$/\1/p' "$dir/$1.log"; }
up() { curl -sf "http://$(admin "$1")/metrics" | grep -q 'kvpin_replica_up{.*} 1'; }

set_stage() {
  begin replica replica --port 0 --model tiny --time-scale 50
  wait_for grep -qE '127\.0\.0\.1:[0-9]+' "$dir/replica.out" "$dir/replica.log"
  replica=$(cat "$dir/replica.out" "$dir/replica.log" | grep -oE '127\.0\.0\.1:[0-9]+' | head -n 1)
  cat >"$dir/edge.yaml" <<YAML
listen:
  - 127.0.0.1:0
  - address: 127.0.0.1:0
    tls:
      certificates:
        - {certificate: rsa.pem, key: rsa.key}
        - {certificate: ec.pem, key: ec.key}
        - {certificate: wild.pem, key: wild.key}
  - address: 127.0.0.1:0
    tls: {certificate: replica.pem, key: replica.key, client_ca: ca.pem, min_version: 1.3}
admin: 127.0.0.1:0
models: {tiny: {max_num_seqs: 32, replicas: ["http://$replica"]}}
YAML
  begin edge run --config "$dir/edge.yaml"
  edge_pid=${pids[-1]}
  wait_for admin_is_there edge
  mapfile -t listeners < <(addresses edge)
  plain=${listeners[0]} open=${listeners[1]} closed=${listeners[2]}
  wait_for up edge
}

admin_is_there() { [[ -n $(admin "$1") ]]; }
