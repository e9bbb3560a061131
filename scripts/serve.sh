#!/usr/bin/env bash
# From a clone to an OpenAI-compatible server: installs what is missing, then serves.
# All flags are those of `tandem serve`; with none, the demo model at http://127.0.0.1:8000.
#
#   scripts/serve.sh
#   scripts/serve.sh --model ./GLM-5.3-Flash-exl3 --cards cuda:2 --context 384k
#   scripts/serve.sh --help
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

"$here/setup.sh"
exec "$here/../.venv/bin/tandem" serve "$@"
