#!/usr/bin/env bash
# Puts the coding agents that the tests beside this file drive, and pytest, into a cache folder.
#
#   tests/clients/setup.sh [FOLDER]     default: $KVPIN_CLIENTS_DIR, else ~/.cache/kvpin-clients
#
# Needs Node with npm, Python 3.11 with venv and 1.5 GB of disk; run again, it finds everything in place and ends at once.
# A run that was broken off is taken up again: the mark is left only when all is done.
set -euo pipefail

# An agent changes what it sends from one version to the next, so a test of today's can only be of these.
readonly claude_code_version=2.1.332
readonly codex_version=0.171.0
readonly opencode_version=1.18.33
readonly pytest_version=8.4.2

folder=${1:-${KVPIN_CLIENTS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/kvpin-clients}}

say() { printf 'clients setup [%3ds] %s\n' "$SECONDS" "$*"; }

need() {
  command -v "$1" >/dev/null && return
  echo "the tests of the real clients need $1: install $2" >&2
  exit 1
}

# The agents' programs come as optional dependencies, one package for each platform.
install() {
  say "making a virtual environment in $folder"
  python3 -m venv --clear "$folder/venv"
  "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir "pytest==$pytest_version"
  say "Claude Code $claude_code_version, Codex $codex_version, OpenCode $opencode_version"
  rm -rf "$folder/npm"
  mkdir "$folder/npm"
  echo '{"private": true}' >"$folder/npm/package.json"
  npm install --prefix "$folder/npm" --no-audit --no-fund --loglevel error \
    "@anthropic-ai/claude-code@$claude_code_version" "@openai/codex@$codex_version" "opencode-ai@$opencode_version"
}

need npm "Node 20 or newer, which brings npm (on Debian: apt-get install npm)"
need python3 "Python 3.11 or newer with its venv module"
need flock "util-linux"

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
# Its name holds what was installed, so that a change of version installs anew.
readonly mark=$folder/installed-claude-code-$claude_code_version-codex-$codex_version-opencode-$opencode_version-pytest-$pytest_version

# Two runs at once (a developer's and CI's) would spoil each other's folder.
exec 9>"$folder/lock"
flock 9

if [[ ! -f $mark ]]; then
  rm -f "$folder"/installed-*
  install
  touch "$mark"
fi

say "the clients are in $folder"
