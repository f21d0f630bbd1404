#!/bin/sh
# Compares Cairn with other stores; see compare.py.
#   benchmarks/compare/data_plane/run.sh BUILD_DIR [compare.py options]
# A peer that setup.sh --check misses is left out; exit status 3 when none is left.
set -eu
exec python3 "$(dirname "$0")/compare.py" "$@"
