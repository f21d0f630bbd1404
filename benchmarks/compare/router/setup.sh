#!/bin/sh
# Installs the routers of others in a virtual environment below build/. Does nothing where it is
# there already.
#   benchmarks/compare/router/setup.sh [--check]
# --check: installs nothing; exit status 1 and a line of what is missing.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
venv=$root/build/compare/router
wanted=$(sha256sum "$here/requirements.txt" | cut -c1-64)

complete=no
[ "$(cat "$venv/complete" 2>/dev/null)" = "$wanted" ] && complete=yes
if [ "${1:-}" = --check ]; then
  [ $complete = yes ] && exit 0
  echo "the Python environment of the other routers is missing"
  exit 1
fi
if [ $complete = no ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r "$here/requirements.txt"
  echo "$wanted" > "$venv/complete"
fi
