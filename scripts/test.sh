#!/usr/bin/env bash
# Every check of this repository: style, types, imports between rooms, tests.
#
#   scripts/test.sh                       all of it, without tests that need a CUDA card
#   scripts/test.sh --gpu                 those too
#   scripts/test.sh tests/loader -k gguf  pytest alone, with these arguments
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

selection=(-m "not gpu")
extras=(test gpu) # gpu: its compiler checks the CUDA sources, which takes no card
if [[ ${1:-} == --gpu ]]; then
  selection=()
  shift
fi

scripts/setup.sh "${extras[@]}"
bin=.venv/bin
$bin/tandem models pull demo >/dev/null || echo "test: without the demo model; its tests will be skipped" >&2

if [[ $# -eq 0 ]]; then
  $bin/ruff check .
  $bin/ruff format --check .
  $bin/mypy
  $bin/lint-imports
fi
exec $bin/python -m pytest "${selection[@]}" "$@"
