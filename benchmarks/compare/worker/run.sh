#!/bin/sh
# Compares the worker with PyTorch and llama.cpp; see compare.py.
#   benchmarks/compare/worker/run.sh BUILD_DIR MODEL.gguf [compare.py options]
# Installs the yardsticks in a virtual environment under build/ at the first call (llama.cpp is
# compiled: some ten minutes).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
build=$1
model=$2
shift 2
venv=$root/build/compare/venv
if [ ! -e "$venv/complete" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet -r "$here/requirements.txt"
  touch "$venv/complete"
fi
exec "$venv/bin/python" "$here/compare.py" --bench "$build/bin/worker_bench" --model "$model" "$@"
