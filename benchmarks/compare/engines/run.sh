#!/bin/sh
# The engines' adapters next to the code that they replace; see README.md.
#   run.sh BUILD_DIR [halves|ttft|slow_store] [--out rows.json] [--repeat 7]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
build=$1
what=$2
shift 2
[ -e "$root/build/engines/venv/complete" ] || {
  echo "make test-engines installs the engines first" >&2
  exit 3
}
model=$root/build/engines/models/smollm2
if [ "$what" != halves ] && [ ! -e "$model/config.json" ]; then
  mkdir -p "$model"
  "$root/build/engines/venv/bin/python" "$root/tests/engines/make_model.py" smollm2 \
    "$root/build/models/SmolLM2-135M-Instruct.Q4_1.gguf" "$model"
fi
export OMP_NUM_THREADS=1 VLLM_TARGET_DEVICE=cpu
exec "$root/build/engines/venv/bin/python" "$here/$what.py" --build "$build" "$@"
