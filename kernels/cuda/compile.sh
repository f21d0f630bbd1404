#!/bin/sh
# compile.sh LOG COMMAND...: runs a compiler, keeps what it says in LOG, and shows it if it fails.
log=$1
shift
"$@" > "$log" 2>&1 && exit 0
cat "$log" >&2
exit 1
