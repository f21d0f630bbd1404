#!/bin/sh
# Installs the peers: Debian packages (through sudo when not root) and a virtual environment below
# build/. Does nothing where they are there already.
#   benchmarks/compare/data_plane/setup.sh [--check [redis|mooncake|lmcache]]
# --check: installs nothing; exit status 1 and a line for each thing that is missing, for all peers
# or for one. LMCache runs in the environment of the engine tests, which this does not make: it is
# about 3 GB.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
venv=$root/build/compare/data_plane
wanted=$(sha256sum "$here/requirements.txt" | cut -c1-64)

missing=
for package in $(grep -v '^#' "$here/packages.txt"); do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
    missing="$missing $package"
done
complete=no
[ "$(cat "$venv/complete" 2>/dev/null)" = "$wanted" ] && complete=yes

if [ "${1:-}" = --check ]; then
  status=0
  if [ "${2:-}" != lmcache ]; then
    [ -z "$missing" ] || { echo "Debian packages are missing:$missing"; status=1; }
    [ $complete = yes ] || { echo "the Python environment of the peers is missing"; status=1; }
  fi
  case "${2:-lmcache}" in
    lmcache)
      [ -f "$root/build/engines/venv/complete" ] || {
        echo "the environment of the engine tests, which has LMCache, is missing"
        status=1
      } ;;
  esac
  exit $status
fi

if [ -n "$missing" ]; then
  sudo=
  [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq
  # The packaged redis-server would start a service of its own.
  $sudo env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends $missing
fi
if [ $complete = no ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r "$here/requirements.txt"
  echo "$wanted" > "$venv/complete"
fi
