#!/bin/sh
# Compares Cairn's router with others; see compare.py.
#   benchmarks/compare/router/run.sh BUILD_DIR [compare.py options]
set -eu
exec python3 "$(dirname "$0")/compare.py" "$@"
