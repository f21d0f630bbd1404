#!/bin/sh
# jobs.sh [MEMINFO]: how many compilers a build runs at the same time. One more than there are
# processors, so that none is idle while a compiler reads from the disk, and a build next to other
# work gets more of its share. A compiler takes up to 1 GiB of memory: fewer where there is less.
set -eu
jobs=$(($(nproc) + 1))
room=$(awk '/^MemAvailable:/ { print int($2 / 1024 / 1024) }' "${1:-/proc/meminfo}")
[ "$room" -ge "$jobs" ] || jobs=$room
[ "$jobs" -ge 1 ] || jobs=1
echo "$jobs"
