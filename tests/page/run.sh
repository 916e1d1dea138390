#!/usr/bin/env bash
# Opens kvpin's page in a headless Chromium: over the built kvpin in front of simulated replicas with agents that talk to
# them, and over generated statuses, of 20 models of 64 replicas for one.
#
#   tests/page/run.sh [ARGUMENTS OF node --test]
#
# Needs Node 20. Where there is no Chromium it is installed, which takes apt and root.
#
# KVPIN_BIN             the kvpin to test                            default: target/debug/kvpin
# KVPIN_CHROMIUM        the browser                                  default: chromium, chromium-browser or google-chrome
# KVPIN_PAGE_PICTURES   a folder for pictures of the page            default: none are taken
# KVPIN_PAGE_TALK_S     how long agents talk before the first look   default: 12
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kvpin=$(realpath -m "${KVPIN_BIN:-$here/../../target/debug/kvpin}")

if [[ ! -x $kvpin ]]; then
  echo "there is no kvpin at $kvpin: run cargo build, or say with KVPIN_BIN where it is" >&2
  exit 1
fi
if ! command -v node >/dev/null || (($(node -p 'process.versions.node.split(".")[0]') < 20)); then
  echo "the test of the page needs Node 20 or newer" >&2
  exit 1
fi

find_chromium() { command -v "${KVPIN_CHROMIUM:-chromium}" || command -v chromium-browser || command -v google-chrome; }

if ! chromium=$(find_chromium); then
  echo "installing chromium"
  # A font too: without one, all text is boxes of no width.
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core fonts-inter
  chromium=$(find_chromium)
fi
"$chromium" --version 2>/dev/null

if [[ -n ${KVPIN_PAGE_PICTURES:-} ]]; then
  KVPIN_PAGE_PICTURES=$(realpath -m "$KVPIN_PAGE_PICTURES")
fi
export KVPIN_BIN=$kvpin KVPIN_CHROMIUM=$chromium KVPIN_PAGE_PICTURES=${KVPIN_PAGE_PICTURES:-}
# One that hangs fails its test, and ends what it has started.
exec timeout -k 20 8m node --test --test-reporter=spec "$@" "$here"/{pure,generated,page}.test.mjs
