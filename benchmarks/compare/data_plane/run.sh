#!/bin/sh
# Compares Cairn with other stores over TCP; see compare.py.
#   benchmarks/compare/data_plane/run.sh BUILD_DIR [compare.py options]
# The peers must be there: setup.sh installs them.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
if ! "$here/setup.sh" --check >&2; then
  echo "install the peers with: benchmarks/compare/data_plane/setup.sh" >&2
  exit 3
fi
exec "$root/build/compare/data_plane/bin/python" "$here/compare.py" "$@"
