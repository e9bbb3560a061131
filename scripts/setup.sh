#!/usr/bin/env bash
# Make .venv in this clone and install Tandem into it, every version pinned by constraints.txt.
# Run it as often as you like: it does nothing while pyproject.toml and constraints.txt stay the same.
#
#   scripts/setup.sh              what serving needs
#   scripts/setup.sh test gpu     and these extras of pyproject.toml
#
# PYTHON=/path/to/python chooses the interpreter (3.11 or newer). No compiler is needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 2; }

stamp_file=.venv/tandem-stamp
fingerprint=$(cat pyproject.toml constraints.txt scripts/setup.sh | sha256sum | cut -c1-64)
installed=()

# The stamp's first line is the fingerprint, the others are the extras installed with it.
up_to_date() {
  local stamp extra
  [[ -x .venv/bin/tandem && -r $stamp_file ]] || return 1
  mapfile -t stamp <"$stamp_file"
  installed=("${stamp[@]:1}")
  [[ ${stamp[0]} == "$fingerprint" ]] || return 1
  for extra in "$@"; do
    [[ " ${installed[*]} " == *" $extra "* ]] || return 1
  done
}

up_to_date "$@" && exit 0

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s' "$candidate"
      return
    fi
    [[ -z ${PYTHON:-} ]] || fail "PYTHON=$PYTHON is not a Python of 3.11 or newer"
  done
  fail "no Python of 3.11 or newer found; on Debian and Ubuntu: apt-get install python3 python3-venv"
}

python=$(find_python)
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  fail "Python $version lacks its venv module; on Debian and Ubuntu: apt-get install python$version-venv"
fi

if command -v flock >/dev/null; then
  exec 9>.venv.lock
  flock --nonblock 9 || { say "another setup is running; waiting for it"; flock 9; }
  up_to_date "$@" && exit 0
fi

if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
  say "making .venv with Python $version"
  "$python" -m venv --clear .venv
fi

extras=$(printf '%s\n' ${installed[@]+"${installed[@]}"} "$@" | sort -u | sed '/^$/d' | paste -sd, -)
say "installing tandem${extras:+ with $extras} (torch alone is 200 MB to 3 GB; this happens once)"
rm -f "$stamp_file"
quiet=(--quiet --quiet)
[[ -t 2 ]] && quiet=()
.venv/bin/python -m pip install --disable-pip-version-check ${quiet[@]+"${quiet[@]}"} \
  --constraint constraints.txt --editable ".${extras:+[$extras]}" >&2 ||
  fail "the installation failed (see above); check the network and pip's configuration, then run it again"

{ printf '%s\n' "$fingerprint"; tr ',' '\n' <<<"$extras"; } >"$stamp_file"
say "done: .venv/bin/tandem"
