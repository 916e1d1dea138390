# The facts, a function a subject. Each uses what stage.sh has set up.

# A handshake with the listener that lets everybody in; what openssl says of it.
handshake() { openssl s_client -connect "$open" -CAfile "$dir/ca.pem" -verify_return_error "$@" </dev/null 2>&1; }

# handshake_says WORDS ARGUMENTS...
handshake_says() {
  local words=$1 said
  shift
  said=$(handshake "$@") && grep -qF -- "$words" <<<"$said" || { echo "$said"; return 1; }
}

# curl to a listener under the name of its certificate.
to_open() { curl -sS --max-time 20 --cacert "$dir/ca.pem" --connect-to "$host:443:$open" "$@"; }
to_closed() { curl -sS --max-time 20 --cacert "$dir/ca.pem" "https://$closed/health" "$@"; }

says() {
  local words=$1 said
  shift
  said=$("$@" 2>&1) && grep -qF -- "$words" <<<"$said" || { echo "$said"; return 1; }
}

versions_and_ciphers() {
  local cipher version
  fact "TLS 1.3 is spoken" handshake_says "TLSv1.3" -servername "$host" -tls1_3
  fact "TLS 1.2 is spoken" handshake_says "TLSv1.2" -servername "$host" -tls1_2
  for version in tls1_1 tls1; do
    fact "$version is refused" ! handshake "-$version" -cipher 'ALL:@SECLEVEL=0'
  done
  for cipher in ECDHE-RSA-AES128-GCM-SHA256 ECDHE-RSA-AES256-GCM-SHA384 ECDHE-RSA-CHACHA20-POLY1305; do
    fact "$cipher is taken" handshake_says "$cipher" -tls1_2 -cipher "$cipher"
  done
  # No forward secrecy, no authentication of what is encrypted, or no encryption at all.
  for cipher in AES128-SHA AES256-GCM-SHA384 ECDHE-RSA-AES128-SHA ECDHE-RSA-AES256-SHA384 DHE-RSA-AES128-GCM-SHA256 \
    aNULL eNULL; do
    fact "$cipher is refused" ! handshake -tls1_2 -cipher "$cipher:@SECLEVEL=0"
  done
  fact "nothing is compressed" handshake_says "Compression: NONE" -tls1_2
  fact "a session of TLS 1.2 is taken up again" session_is_reused -tls1_2
  fact "a session of TLS 1.3 is taken up again" session_is_reused -tls1_3
}

# In TLS 1.3 the ticket comes behind the handshake, so something is asked and read.
session_is_reused() {
  printf 'GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' |
    openssl s_client -connect "$open" -CAfile "$dir/ca.pem" "$1" -ign_eof -sess_out "$dir/session" >/dev/null 2>&1
  handshake_says "Reused" "$1" -sess_in "$dir/session"
}

what_is_shown() {
  fact "HTTP/2 is agreed on" handshake_says "ALPN protocol: h2" -alpn h2,http/1.1
  fact "HTTP/1.1 is agreed on" handshake_says "ALPN protocol: http/1.1" -alpn http/1.1
  fact "a client that asks for neither gets HTTP/1.1" handshake_says "No ALPN negotiated"
  fact "the certificate of a host is shown" handshake_says "CN = wild" -servername a.lab.test -verify_hostname a.lab.test
  fact "without a host the first one is shown" handshake_says "CN = rsa" -noservername
  fact "for another host the first one is shown" handshake_says "CN = rsa" -servername elsewhere.test
  fact "a client that checks RSA gets RSA" handshake_says "CN = rsa" -servername "$host" -sigalgs RSA-PSS+SHA256
  fact "a client that checks curves gets a curve" handshake_says "CN = ec" -servername "$host" -sigalgs ECDSA+SHA256
}

who_gets_in() {
  fact "with a certificate a client gets in" to_closed --cert "$dir/client.pem" --key "$dir/client.key"
  fact "without one it does not" ! to_closed
  fact "with a stranger's it does not" ! to_closed --cert "$dir/unwanted.pem" --key "$dir/unwanted.key"
  fact "nor with TLS 1.2 where 1.3 is wanted" ! to_closed --cert "$dir/client.pem" --key "$dir/client.key" --tls-max 1.2
  fact "plain HTTP is not spoken there" ! curl -sS --max-time 20 "http://$open/health"
  fact "nor HTTP/2 in the clear" ! curl -sS --max-time 20 --http2-prior-knowledge "http://$plain/health"
}

# sslscan 2: what is on, and what is known to be broken.
scanned() {
  local scan=$dir/sslscan.txt
  sslscan --no-colour --iana-names --sni-name="$host" "$open" >"$scan"
  fact "sslscan finds TLS 1.2 and 1.3 and nothing older" \
    test "$(grep -cE '^(SSLv2|SSLv3|TLSv1\.0|TLSv1\.1) +disabled' "$scan")$(grep -cE '^TLSv1\.[23] +enabled' "$scan")" = 42
  fact "sslscan finds no renegotiation by clients" ! grep -q 'Insecure session renegotiation supported' "$scan"
  fact "sslscan finds no Heartbleed" ! grep -qE '[^t] vulnerable to heartbleed' "$scan"
  fact "sslscan finds six ciphers or more" test "$(grep -cE '^(Accepted|Preferred) ' "$scan")" -ge 6
  fact "sslscan finds none that is weak" ! grep -E '^(Accepted|Preferred) .*(CBC|RC4|DES|NULL|EXP|anon|MD5|TLS_RSA_)' "$scan"
  ((failed == 0)) || cat "$scan"
}

turns() {
  local version
  printf '{"model":"tiny","messages":[{"role":"user","content":"hello"}],"max_tokens":8,"stream":true}' >"$dir/stream.json"
  { printf '{"model":"tiny","prompt":"x","max_tokens":1,"pad":"'; head -c 5000000 /dev/zero | tr '\0' x; printf '"}'; } >"$dir/large.json"
  for version in http1.1 http2; do
    fact "$version: a turn is streamed to its end" says "data: [DONE]" turn "$version" chat/completions --data-binary "@$dir/stream.json"
    fact "$version: five megabytes arrive" says " 200" turn "$version" completions --data-binary "@$dir/large.json" -w ' %{http_code}'
    fact "$version: and without a length" says " 200" turn "$version" completions -X POST -T - -w ' %{http_code}' <"$dir/large.json"
    fact "$version: an unknown model is refused" says "is not served here" turn "$version" completions -d '{"model":"other"}'
    fact "$version: a HEAD has no body" says "content-length" to_open "--$version" -I "https://$host/"
  done
  fact "HTTP/2 it is" says "HTTP/2 200" to_open --http2 -I "https://$host/"
}

turn() {
  local version=$1 path=$2
  shift 2
  to_open "--$version" "https://$host/v1/$path" -H 'content-type: application/json' -H 'session-id: edge' "$@"
}

# nghttp2 knows nothing of what kvpin's HTTP/2 is made of.
http2_under_load() {
  local load=$dir/load.json
  printf '{"model":"tiny","prompt":"x","max_tokens":1}' >"$load"
  fact "2,000 turns on 8 connections with 25 streams each are answered" \
    says "2000 succeeded, 0 failed" h2load -n 2000 -c 8 -m 25 -d "$load" -H 'content-type: application/json' \
    "https://$open/v1/completions"
  fact "all of them well" says "2000 2xx" h2load -n 2000 -c 8 -m 100 "https://$open/v1/models"
}

renewed() {
  local before after
  before=$(serial_shown)
  make_certificate ec ca ec "DNS:$host"
  make_certificate rsa ca rsa "DNS:$host"
  kill -HUP "$edge_pid"
  wait_for grep -q "reloaded: " "$dir/edge.log"
  after=$(serial_shown)
  fact "a renewed certificate is shown after a reload" test "$before" != "$after"
  echo "no certificate" >"$dir/rsa.pem"
  kill -HUP "$edge_pid"
  wait_for grep -q "reload refused" "$dir/edge.log"
  fact "a broken one is refused by name" grep -q "reload refused.*listen\[1\].tls.certificates\[0\].certificate.*rsa.pem" "$dir/edge.log"
  fact "and the one before is shown" test "$(serial_shown)" = "$after"
}

serial_shown() { handshake -servername "$host" | openssl x509 -noout -serial; }

# The kvpin under test plays a replica with TLS for another one.
replicas_with_tls() {
  local name ca
  for name in trusting doubting; do
    [[ $name == trusting ]] && ca=ca.pem || ca=stranger.pem
    cat >"$dir/$name.yaml" <<YAML
listen: 127.0.0.1:0
admin: 127.0.0.1:0
models:
  tiny:
    max_num_seqs: 32
    replicas: [{url: "https://$closed", name: box, ca_file: $ca, client_certificate: client.pem, client_key: client.key}]
YAML
    begin "$name" run --config "$dir/$name.yaml"
    wait_for admin_is_there "$name"
  done
  wait_for up trusting
  fact "a turn goes to a replica with TLS" says "data: [DONE]" \
    curl -sS --max-time 20 "http://$(addresses trusting)/v1/chat/completions" --json "@$dir/stream.json"
  wait_for grep -q "replica=box is down" "$dir/doubting.log"
  fact "one of an unknown authority is down" grep -q "is down reason=certificate_refused" "$dir/doubting.log"
  fact "the log says why" grep -q "can't be spoken to over TLS: invalid peer certificate: UnknownIssuer" "$dir/doubting.log"
  fact "and so does the refusal" says "box down (its certificate is not trusted)" \
    curl -sS --max-time 20 "http://$(addresses doubting)/v1/chat/completions" --json "@$dir/stream.json"
}
