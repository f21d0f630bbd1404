#!/bin/sh
# setup.sh [--check|--timed] [LIST ...]
# Installs the Debian packages of packages.txt, and of each LIST next to it, that are missing; says
# so and does nothing when none is. As root directly, else through sudo. `setup.sh --check` only
# lists what is missing and exits 1 if anything is. `setup.sh --timed` is that of the Makefile:
# quiet where nothing is missing, and it adds its seconds to build/.steps.
set -eu
began=$(date +%s)
here=$(dirname "$0")
mode=""
case "${1:-}" in
  --check | --timed)
    mode=$1
    shift
    ;;
esac

missing=""
for package in $(cd "$here" && grep -hv '^#' packages.txt "$@"); do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
    missing="$missing $package"
done

if [ -z "$missing" ]; then
  [ -n "$mode" ] || echo "setup: every package is there"
  exit 0
fi
if [ "$mode" = "--check" ]; then
  echo "missing packages:$missing"
  exit 1
fi

if [ "$(id -u)" -eq 0 ]; then
  as_root=""
elif command -v sudo >/dev/null 2>&1; then
  as_root="sudo"
else
  echo "setup: these packages are missing, and this is neither root nor is there sudo:$missing" >&2
  exit 1
fi

echo "setup: installing$missing"
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq ||
  echo "setup: the package lists could not be renewed: going on with those that are here" >&2
# prometheus is used as a program by a test: Debian would start it as a service, which nobody asked
# for.
policy=/usr/sbin/policy-rc.d
made_policy=no
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
  $as_root chmod +x "$policy"
  made_policy=yes
fi
status=0
# shellcheck disable=SC2086  # One word a package.
$as_root env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends $missing >/dev/null || status=$?
[ "$made_policy" = no ] || $as_root rm -f "$policy"
[ "$status" -eq 0 ] || {
  echo "setup: apt-get could not install the packages (status $status): if what it printed speaks" \
    "of the network or of sources, mend those, or install them by hand:$missing" >&2
  exit "$status"
}
echo "setup: done"
[ "$mode" != "--timed" ] ||
  printf '%s\tpackages\n' "$(($(date +%s) - began))" >>"$here/../../build/.steps"
