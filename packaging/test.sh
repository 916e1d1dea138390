#!/usr/bin/env bash
# Installs, upgrades, removes and purges the Debian package on this machine: bash packaging/test.sh
#
# It needs root, and leaves nothing behind. systemd need not run here: its unit is looked at by systemd-analyze.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# 2.5 at most, as systemd-analyze counts.
readonly exposure_max=25
readonly config=/etc/kvpin/kvpin.yaml
work=$(mktemp -d)
serving=

main() {
  refuse_to_harm
  trap clean_up EXIT
  build 1 && build 2
  remember before
  install_it
  look_at_the_unit
  serve_over_an_upgrade
  remove_and_purge
  echo "the package installs, upgrades, goes, and leaves nothing"
}

fail() {
  echo "packaging/test.sh: $*" >&2
  exit 1
}

# A kvpin that is somebody's is not to be purged.
refuse_to_harm() {
  [[ $(id -u) = 0 ]] || fail "it takes root to install a package"
  [[ ! -e /etc/kvpin && ! -e /var/lib/kvpin ]] || fail "there is a kvpin on this machine already"
  ! getent passwd kvpin >/dev/null || fail "there is an account kvpin on this machine already"
}

build() {
  packaging/build.sh --quiet --deb-revision "$1" --output "$work/kvpin-$1.deb"
}

# What there is where the package puts things.
remember() {
  find /etc /usr /var/lib /run /home -xdev \( -path /var/lib/dpkg -o -path /var/lib/apt -o -path /run/lock \) -prune -o -print 2>/dev/null |
    sort >"$work/files-$1"
  getent passwd | sort >"$work/accounts-$1"
  getent group | sort >"$work/groups-$1"
}

install_it() {
  dpkg -i "$work/kvpin-1.deb"
  [[ $(command -v kvpin) = /usr/bin/kvpin ]] || fail "another kvpin is found first"
  kvpin --version
  kvpin check --config "$config" >/dev/null || fail "the default configuration is refused"
  [[ $(stat -c '%U:%G %a' /etc/kvpin) = 'root:kvpin 2750' ]] || fail "$(stat /etc/kvpin)"
  [[ $(dpkg-query --show --showformat '${Conffiles}' kvpin) = *"$config"* ]] || fail "the configuration is no conffile"
  [[ $(dpkg-query --show --showformat '${Conffiles}' kvpin) = */etc/logrotate.d/kvpin* ]] || fail "no rotation of logs"
  # Read to its end: a pipe that is left early would fail for that.
  [[ $(zcat -f /usr/share/man/man1/kvpin.1* /usr/share/man/man1/kvpin-upgrade.1* | grep -c '^\.SH') -gt 1 ]] || fail "no man pages"
  bash -n /usr/share/bash-completion/completions/kvpin
  [[ -s /usr/share/zsh/vendor-completions/_kvpin && -s /usr/share/fish/vendor_completions.d/kvpin.fish ]]
}

look_at_the_unit() {
  local unit=kvpin.service found
  found=$(systemd-analyze verify --man=no "$unit" 2>&1) || fail "$found"
  [[ -z $found ]] || fail "$found"
  found=$(systemd-analyze security --offline=true --threshold=$exposure_max "$unit" 2>&1) || fail "$found"
  tail -n 1 <<<"$found"
  # With the way to the GPUs, too.
  install -D -m 644 /usr/share/doc/kvpin/examples/gpus.conf "$work/units/$unit.d/gpus.conf"
  found=$(SYSTEMD_UNIT_PATH="$work/units:" systemd-analyze security --offline=true --threshold=$exposure_max "$unit" 2>&1) ||
    fail "$found"
  [[ $found = *char-nvidia* ]] || fail "the GPUs are out of reach: $found"
  tail -n 1 <<<"$found"
}

# What the operator has changed stays, and the process that serves can be replaced by the new version.
serve_over_an_upgrade() {
  local old new admin
  echo "# ours" >>"$config"
  install -d -o kvpin -g kvpin -m 0700 /var/lib/kvpin
  printf 'listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nmodels: {m: {replicas: ["http://127.0.0.1:9"]}}\n' >/etc/kvpin/test.yaml
  chmod 640 /etc/kvpin/test.yaml
  STATE_DIRECTORY=/var/lib/kvpin setpriv --reuid=kvpin --regid=kvpin --init-groups --no-new-privs \
    /usr/bin/kvpin run --config /etc/kvpin/test.yaml 2>"$work/log" &
  serving=$!
  admin=$(await 's/.*admin on //p')
  old=$serving
  dpkg -i "$work/kvpin-2.deb"
  grep -q '^# ours$' "$config" || fail "the operator's configuration was replaced"
  [[ $(readlink "/proc/$old/exe") = *'(deleted)' ]] || fail "the program was not replaced"
  kvpin upgrade --admin "$admin"
  new=$(await 's/.*upgrade: process \([0-9]*\) serves.*/\1/p')
  serving=$new
  [[ $(readlink "/proc/$new/exe") = /usr/bin/kvpin ]] || fail "the old program still serves"
  kill -TERM "$new"
  until_gone "$old" "$new"
  serving=
  [[ -s /var/lib/kvpin/state ]] || fail "no state was written"
  rm /etc/kvpin/test.yaml
}

remove_and_purge() {
  dpkg -r kvpin
  [[ -e $config && -s /var/lib/kvpin/state && ! -e /usr/bin/kvpin ]] || fail "a removal takes too much or too little"
  dpkg -P kvpin
  remember after
  diff "$work/files-before" "$work/files-after" || fail "files are left"
  diff "$work/accounts-before" "$work/accounts-after" || fail "an account is left"
  diff "$work/groups-before" "$work/groups-after" || fail "a group is left"
}

# The part of the log that an expression of sed finds, once it is there.
await() {
  local found
  for _ in $(seq 300); do
    found=$(sed -n "$1" "$work/log")
    [[ -z $found ]] || { echo "$found"; return; }
    sleep 0.1
  done
  cat "$work/log" >&2
  fail "the log has nothing for $1"
}

until_gone() {
  local pid
  for pid in "$@"; do
    for _ in $(seq 300); do
      [[ -e /proc/$pid/exe ]] || continue 2
      sleep 0.1
    done
    fail "process $pid does not end"
  done
}

clean_up() {
  [[ -z $serving ]] || kill -KILL "$serving" 2>/dev/null || true
  dpkg -P kvpin >/dev/null 2>&1 || true
  rm -rf "$work"
}

main
