#!/bin/sh
# goal.sh GOAL MAKE...: what the Makefile does first for each goal that builds or runs something.
# It refuses a second make in the same folder and a disk that is too full, and becomes MAKE, which
# then runs the recipe with CAIRN_GOAL set. The lock is on descriptor 9 of that process, and ends
# with it.
set -eu
cd "$(dirname "$0")/../.."
goal=$1
shift

refuse() {
  echo "make $goal: $*" >&2
  exit 1
}

mkdir -p build || refuse "the folder build cannot be made here: check who owns $(pwd)"
exec 9<>build/.make
flock -n 9 || refuse "process $(cat build/.make) makes something in this folder already:" \
  "wait until it has ended, or end it"
echo $$ >build/.make

# Megabytes that a goal leaves in build/, from nothing (CONTRIBUTING.md has them by goal).
case $goal in
  demo | build) needed=2000 ;;
  setup | lint) needed=1500 ;;
  *) needed=6000 ;;
esac
[ ! -d build/release/bin ] || needed=$((needed / 4))
free=$(df -Pk build | awk 'NR == 2 { print int($4 / 1024) }')
[ "$free" -ge "$needed" ] || refuse "build/ has $free MB free, and this takes about $needed MB:" \
  "free some, or put this folder on a larger disk"

# Before anything else, and without what is not installed yet.
case $goal in
  demo | build)
    if command -v python3 >/dev/null; then
      python3 tools/make/estimate.py "$goal" --jobs "${JOBS:-$(nproc)}" || true
    else
      echo "make $goal: Debian packages come first, for about a minute; then it says how long" >&2
    fi
    ;;
esac

date +%s >build/.steps
export CAIRN_GOAL="$goal"
exec "$@"
