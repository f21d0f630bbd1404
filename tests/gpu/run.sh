#!/bin/bash
# Tries Cairn on this machine's GPU, or on the fake device, within nine minutes and without a
# network. README.md next to it says what each step does.
#
# Programs are looked for next to this script (a bundle of `make gpu-bundle`), else in
# build/release.

set -u
shopt -s inherit_errexit nullglob

usage() {
  cat <<'END'
run.sh [--device fake] [--build DIR] [--json FILE] [--logs DIR] [--steps LIST] [--limit SECONDS]

Tries Cairn on GPU 0 of this machine: limits, conformance, rates, memory shared by processes, a
cache node's device tier, a worker's time to first token, NCCL, torch, faults, compute-sanitizer.

  --device fake     the fake device with emulated kernels: everything runs, no speed means anything
  --build DIR       where programs are (default: next to this script, or build/release)
  --json FILE       also write the results there, one object
  --logs DIR        keep what the steps printed there (default: a new folder below /tmp)
  --steps LIST      only these, with commas between them (default: all, in this order):
                    limits,conformance,rates,chunks,tier,warm,nccl,torch,faults,sanitizer
  --limit SECONDS   of everything together (default 530)

Each step is a process of its own with a time limit; a step that fails or hangs stops no other. The
table is printed at the end, and when this script is told to stop (Ctrl-C, SIGTERM, SIGHUP).
Exit code 0: no step failed, 1: one did, 2: wrong arguments, 3: there is no GPU, and nothing ran,
130 or 143: told to stop. What is below a target is marked, but is no failure. Nothing is installed,
and no setting of the GPU is changed.
END
}

wrong() {
  echo "run.sh: $1; see run.sh --help" >&2
  exit 2
}

# ---- Arguments and places ----

ALL_STEPS=(limits conformance rates chunks tier warm nccl torch faults sanitizer)
device=gpu build= json= logs= steps= limit=530
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage && exit 0 ;;
    --device | --build | --json | --logs | --steps | --limit)
      [ $# -ge 2 ] || wrong "$1 needs a value"
      printf -v "${1#--}" %s "$2"
      shift 2
      ;;
    *) wrong "got '$1'" ;;
  esac
done
case $device in gpu | fake) ;; *) wrong "--device: got '$device', expected fake" ;; esac
[[ $limit =~ ^[1-9][0-9]*$ ]] || wrong "--limit: got '$limit', expected seconds"
steps=${steps:-$(IFS=, && echo "${ALL_STEPS[*]}")}
for step in ${steps//,/ }; do
  [[ " ${ALL_STEPS[*]} " == *" $step "* ]] || wrong "--steps: got '$step'"
done

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -z "$build" ]; then
  build=$here
  [ -d "$here/bin" ] || build=$here/../../build/release
fi
build=$(cd "$build" 2>/dev/null && pwd) || wrong "--build: there is no such folder"
bin=$build/bin tests=$build/tests
[ -x "$bin/cairn_gpu_probe" ] ||
  wrong "$bin has no cairn_gpu_probe: build the target cairn_gpu_programs, or give --build"
# Tests read tests/data from the folder in which they run.
data=$here/../..
[ -d "$here/tests/data" ] && data=$here
[ -n "$json" ] && { : >"$json" || wrong "--json: '$json' cannot be written"; }
[ -n "$logs" ] || logs=$(mktemp -d "${TMPDIR:-/tmp}/cairn-gpu-XXXXXX")
mkdir -p "$logs" && logs=$(cd "$logs" && pwd) || wrong "--logs: '$logs' cannot be made"
scratch=$(mktemp -d "${TMPDIR:-/tmp}/cairn-gpu-scratch-XXXXXX")
rows=$logs/rows.tsv results=$logs/steps.tsv
: >"$rows" && : >"$results"

# A bundle brings the libraries that its programs need.
libraries=
[ -d "$build/lib" ] && libraries=$build/lib
. "$here/places.sh"

tiny=()
if [ "$device" = fake ]; then
  library=$bin/libcairn_fake_device.so
  nccl=$bin/libfakenccl.so
  tiny=(--tiny)
  export CAIRN_FAKE_DEVICE=seed=7,memory=4294967296,kernels=$bin/libcairn_fake_kernels.so
else
  library=$bin/libcairn_cuda.so
  nccl=
  unset CAIRN_FAKE_DEVICE
fi

# ---- Results ----

# note STEP STATE SECONDS REASON: ok, failed or skipped.
note() { printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${4//[$'\t\n']/ }" >>"$results"; }

# In the order of rank: what was measured and how it stands to its targets.
print_rows() {
  sort -t$'\t' -k2,2n -s "$rows" | awk -F'\t' -v fake="$device" '
    function meets(value, target) {
      if (target ~ /^<=/) return value + 0 <= substr(target, 3) + 0
      return value + 0 >= target + 0
    }
    $1 == "row" {
      verdict = ""
      if ($5 == "ok") shown = "yes"
      else shown = sprintf("%.4g ", $4) $5
      if ($6 != "-" && fake != "fake") {
        if (meets($4, $7 == "-" ? $6 : $7)) verdict = $7 == "-" ? "ok" : "goal"
        else verdict = meets($4, $6) ? "floor" : "BELOW"
      }
      target = $6 == "-" || fake == "fake" ? "" : $6 ($7 == "-" ? "" : " / " $7)
      printf "  %-70s %14s  %-13s %-6s %s\n", $3, shown, target, verdict, $8
    }
    $1 == "skip" { printf "  %-70s %14s  %s\n", $3, "skipped", $4 }'
}

count() { awk -F'\t' -v state="$1" '$2 == state' "$results" | wc -l; }

print_table() {
  echo
  if [ "$device" = fake ]; then
    echo "On the fake device: what runs and is right. No speed here means anything."
  else
    echo "On ${device_name:-no GPU}"
  fi
  echo
  printf '  %-70s %14s  %s\n' what value "$([ "$device" = fake ] || echo 'floor / goal')"
  print_rows
  echo
  awk -F'\t' '{ printf "  %-12s %-8s %5s s  %s\n", $1, $2, $3, $4 }' "$results"
  echo
  echo "$(count ok) steps ok, $(count failed) failed, $(count skipped) skipped;" \
    "$(grep -c '^skip' "$rows") measurements skipped. Logs: $logs"
}

# Text as a JSON string.
quoted() { sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/\\t/g; s/.*/"&"/' <<<"$1"; }

write_json() {
  local tool
  tool=$(cat "$build/VERSION" 2>/dev/null || git -C "$here" describe --always --dirty 2>/dev/null)
  {
    printf '{"device": %s, "on": %s, "build": %s, "finished": %s,\n "steps": [' \
      "$(quoted "$device")" "$(quoted "${device_name:-}")" "$(quoted "$tool")" "$finished"
    awk -F'\t' '
      function q(s) { gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); return "\"" s "\"" }
      { printf "%s\n  {\"step\": %s, \"state\": %s, \"seconds\": %s, \"reason\": %s}",
               (NR > 1 ? "," : ""), q($1), q($2), $3, q($4) }' "$results"
    printf '],\n "rows": ['
    sort -t$'\t' -k2,2n -s "$rows" | awk -F'\t' '
      function q(s) { gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); return "\"" s "\"" }
      { printf "%s\n  ", (NR > 1 ? "," : "") }
      $1 == "row" {
        printf "{\"what\": %s, \"value\": %s, \"unit\": %s, \"floor\": %s, \"goal\": %s, " \
               "\"note\": %s}", q($3), $4, q($5), q($6), q($7), q($8)
      }
      $1 == "skip" { printf "{\"what\": %s, \"skipped\": %s}", q($3), q($4) }'
    printf ']}\n'
  } >"$json"
}

# ---- Running steps ----

begin=$SECONDS
finished=false missing= running= step= step_begin=0

collect_rows() { grep -E $'^(row|skip)\t' "$logs/$step.out" >>"$rows"; }

finish() {
  trap - EXIT INT TERM HUP
  if [ -n "$running" ]; then
    # A step is a session of its own: all that it started goes with it.
    kill -KILL -- "-$running" 2>/dev/null
    collect_rows
    note "$step" failed $((SECONDS - step_begin)) "run.sh was told to stop"
  fi
  rm -rf "$scratch"
  print_table
  [ -n "$json" ] && write_json
  exit "$1"
}
trap 'finish 130' INT
trap 'finish 143' TERM HUP
# Also when this script has a fault of its own.
trap 'finish 1' EXIT

# A step that exits with 77 is skipped: the last line of its log says why.
run_step() {
  step=$1 step_begin=$SECONDS
  local own=$2 rest=$((limit - (SECONDS - begin))) code took said
  if [ "$rest" -lt 5 ]; then
    note "$step" skipped 0 "no time is left of $limit s"
    return
  fi
  [ "$own" -gt "$rest" ] && own=$rest
  echo "$step (at most $own s) ..."
  setsid timeout -k 2 "$own" bash "$here/steps.sh" "$step" \
    >"$logs/$step.out" 2>"$logs/$step.log" </dev/null &
  running=$!
  wait "$running"
  code=$?
  # Files of this step would disturb the next one.
  kill -KILL -- "-$running" 2>/dev/null
  running=
  collect_rows
  took=$((SECONDS - step_begin))
  said=$(grep -v '^$' "$logs/$step.log" | tail -1 | cut -c1-300)
  case $code in
    0) note "$step" ok "$took" "" ;;
    77) note "$step" skipped "$took" "$said" ;;
    124 | 137) note "$step" failed "$took" "it took more than $own s. $said" ;;
    *) note "$step" failed "$took" "${said:-exit code $code}" ;;
  esac
}

export bin tests data device library nccl libraries scratch rows
export tiny_flag=${tiny[*]}
declare -A limits=([limits]=60 [conformance]=200 [rates]=100 [chunks]=60 [tier]=60 [warm]=150
  [nccl]=100 [torch]=60 [faults]=60 [sanitizer]=90)

device_name=$(ours timeout 60 "$bin/cairn_gpu_probe" device --library "$library" \
  2>"$logs/device.log")
case $? in
  0)
    echo "$device_name"
    for step in ${steps//,/ }; do run_step "$step" "${limits[$step]}"; done
    ;;
  3)
    device_name=
    # The library's warning is in the same log.
    reason=$(grep '^device: ' "$logs/device.log" | tail -1)
    reason=${reason#device: }
    missing=true
    for step in ${steps//,/ }; do note "$step" skipped 0 "no GPU: $reason"; done
    ;;
  *)
    device_name=
    note device failed 0 "$(tail -1 "$logs/device.log")"
    for step in ${steps//,/ }; do note "$step" skipped 0 "the device does not open"; done
    ;;
esac
finished=true
[ "$(count failed)" -eq 0 ] || finish 1
[ -n "$missing" ] && finish 3
finish 0
