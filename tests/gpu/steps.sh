#!/bin/bash
# One step of run.sh, which exports what is used here: bin, tests, data, device, library, nccl,
# libraries, scratch, rows and tiny_flag. Rows and skipped measurements go to stdout
# (probe/rows.h says how), what people read to stderr. Exit codes: 0; 77, skipped, with the reason
# as the last line of stderr; anything else, failed.

set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/places.sh"

# row RANK WHAT VALUE UNIT [FLOOR [GOAL [NOTE]]]
row() {
  printf 'row\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' \
    "$1" "$2" "$3" "$4" "${5:--}" "${6:--}" "${7:-}"
}
skip() { printf 'skip\t%s\t%s\t%s\n' "$1" "$2" "$3"; }
fail() { echo "$1" >&2 && exit 1; }
skip_step() { echo "$1" >&2 && exit 77; }
fake() { [ "$device" = fake ]; }

# shellcheck disable=SC2086  # tiny_flag is one word, or none.
probe() { ours "$bin/cairn_gpu_probe" "$1" --library "$library" $tiny_flag; }

# ---- Servers ----

# start NAME PROGRAM ARGUMENTS...: waits for "ready grpc=ADDRESS admin=ADDRESS" and sets `address`
# and `admin`.
start() {
  local name=$1 line=
  shift
  : >"$scratch/$name.out"  # Here: the line of an earlier step's server must not be read.
  ours "$@" >>"$scratch/$name.out" 2>&2 &
  local pid=$!
  until line=$(grep -m 1 '^ready grpc=' "$scratch/$name.out"); do
    kill -0 $pid 2>/dev/null || fail "$name ended before it served"
    sleep 0.1
  done
  address=${line#ready grpc=} && address=${address%% *}
  admin=${line##* admin=} && admin=${admin%% *}
}

start_node() {
  start node "$bin/cairn-cache" --listen 127.0.0.1:0 --admin.listen 127.0.0.1:0 \
    --device.library "$library" "$@"
  node=$address node_admin=$admin
}

# A number of `cairn stat --json`, by a regular expression up to it.
node_number() {
  ours "$bin/cairn" stat --cache "$node" --json | tr -d '\n ' | grep -oP "$1\\K[0-9.]+"
}
device_blocks() { node_number '"device":\{[^}]*?"blocks":'; }
device_reads() { node_number '"device":\{[^}]*?"read_bytes":'; }

# A metric of the node, by its name and, where it has some, its labels.
node_metric() {
  local connection value
  exec {connection}<>"/dev/tcp/${node_admin%:*}/${node_admin##*:}"
  printf 'GET /metrics HTTP/1.0\r\nHost: node\r\n\r\n' >&"$connection"
  value=$(grep "^$1 " <&"$connection" | awk '{ print $NF }')
  exec {connection}>&-
  printf '%.0f\n' "${value:-0}"
}

# The value that an earlier step measured, by the name of its row; nothing if it did not.
measured() { awk -F'\t' -v what="$1" '$1 == "row" && $3 == what { print $4 }' "$rows"; }
# The value of an expression of numbers.
compute() { awk "BEGIN { print $1 }"; }

# A field of the object that `cairn generate --json` prints.
field() { grep -oP "\"$2\":\\K[0-9.e-]+" <<<"$1"; }

# ---- Steps ----

step_limits() { probe limits; }

# Every suite of kernels over the device; bounds and inputs are those of CPUs and emulation. They
# run at the same time: nothing here is measured.
step_conformance() {
  local suites=(codecs selections kernels) suite failed=0
  # A build without methods (CAIRN_METHODS=OFF) has no selections.
  [ -e "$tests/selections_conformance_test" ] || suites=(codecs kernels)
  for suite in "${suites[@]}"; do run_suite "$suite" & done
  wait
  for suite in "${suites[@]}"; do report_suite "$suite" || failed=1; done
  [ $failed -eq 0 ] || fail "a suite failed: see the log above"
}

# run_suite SUITE: leaves what it printed, and its exit code, in the scratch folder.
run_suite() {
  local filter='*on_device*'
  # The emulation takes minutes for all of them; CI runs them all without a device between.
  if fake; then
    case $1 in
      codecs) filter='*SlicesTest*int8*on_device*:*Hash*on_device*:*CodecKernels*on_device*' ;;
      selections) filter='*Selection*Test*on_device*' ;;
      kernels) filter='*Batch*on_device*:*PagesTest*on_device*' ;;
    esac
  fi
  (cd "$data" && CAIRN_TEST_DEVICE=$library ours "$tests/${1}_conformance_test" \
    --gtest_filter="$filter" --gtest_brief=0) >"$scratch/$1.out" 2>&1
  echo $? >"$scratch/$1.code"
}

report_suite() {
  local out=$scratch/$1.out passed skipped
  passed=$(grep -oP '^\[  PASSED  \] \K\d+' "$out")
  skipped=$(grep -oP '^\[  SKIPPED \] \K\d+' "$out" | head -1)
  row 110 "conformance of kernels: $1" "${passed:-0}" passed - - "${skipped:-0} skipped"
  cat "$out" >&2
  [ "$(cat "$scratch/$1.code")" = 0 ] && [ "${passed:-0}" -gt 0 ] && return
  grep -m 5 '^\[  FAILED  \]' "$out" >&2
  return 1
}

# probes NAME...: one after the other, because each measures. On the fake device no speed means
# anything, so they run at the same time there.
probes() {
  local name failed=0 running=()
  for name in "$@"; do
    if fake; then
      probe "$name" >"$scratch/$name.rows" &
      running+=($!)
    else
      probe "$name" || failed=1
    fi
  done
  for name in "${running[@]}"; do wait "$name" || failed=1; done
  if fake; then for name in "$@"; do cat "$scratch/$name.rows"; done; fi
  return $failed
}

step_rates() { probes slices attention forward save; }

step_chunks() { probes chunks neighbour; }

# Blocks that a client writes and reads go to the device of another process and come back, and each
# byte is compared.
step_tier() {
  probe tier || return
  local load=(ours "$bin/cairn_fault_load" --seed 3 --prompts 40) report
  # Room for few blocks in host: what is read again comes from the device.
  start_node --host.capacity 16MiB --device.capacity 256MiB
  load+=(--address "$node" --dim 128 --layers 8)
  report=$("${load[@]}" --mode both --ops 600) || fail "bytes were wrong: $report"
  echo "$report" >&2
  report=$("${load[@]}" --mode reader --ops 600) || fail "bytes were wrong: $report"
  echo "$report" >&2
  local blocks bytes
  blocks=$(device_blocks) bytes=$(device_reads)
  [ "${blocks:-0}" -gt 0 ] || fail "no block is in the device tier"
  [ "${bytes:-0}" -gt 0 ] || fail "no block was read from the device tier"
  row 100 "a node's device tier: blocks there" "$blocks" blocks
  row 101 "a node's device tier: bytes served from it, all right" \
    "$(awk -v b="$bytes" 'BEGIN { print b / 1e6 }')" MB
}

# The prompt again, after its KV went to the node, and again after that went to its device tier:
# what a request waits for its first token.
step_warm() {
  tokens=32768 shapes=8b
  local context=33024 kv=6GiB host=12GiB vram=4GiB token_bytes=131072
  if fake; then
    tokens=136 shapes=tiny context=256 kv=8MiB host=256MiB vram=64MiB token_bytes=1024
  fi
  ours "$bin/cairn_seeded_model" $shapes "$scratch/model.gguf" "$scratch/prompt" $tokens ||
    fail "no model"
  head -c 48 "$scratch/prompt" >"$scratch/short"
  recipe=turbo:bits=4
  start_node --host.capacity $host --device.capacity $vram
  start worker "$bin/cairn-worker" --listen 127.0.0.1:0 --admin.listen 127.0.0.1:0 \
    --model "$scratch/model.gguf" --device cuda:0 --device_library "$library" --device_kv $kv \
    --context $context --cache.address "$node" --cache.recipe $recipe --cache.choose false \
    --cache.match_deadline 10s --cache.stall_deadline 1m # The fake device is slow.
  worker=$address
  # Wakes clocks and loads kernels.
  ask short && ask short
  local last cold link device blocks
  last=$(field "$answer" ttft_s)
  ask prompt
  cold=$(field "$answer" ttft_s)
  [ "$(field "$answer" fetched_tokens)" = 0 ] || fail "the first request was not cold: $answer"
  row 18 "TTFT cold, $tokens tokens, $shapes shapes" "$cold" s
  print_shares_of_prefill "$cold"
  link=$(measured "pinned copies, host to device")
  device=$(measured "copy in the device, in and out")
  ask_warm 10 "host tier" "$cold"
  # Its bytes cross the link.
  over_limit 11 "host tier" '<=1.3' '<=1.1' "${link:+$bytes / ($link * 1e9) + $last}"
  # Blocks that were read go to the device behind all other work.
  blocks=$((fetched / 64))
  for _ in {1..200}; do
    [ "$(device_blocks)" -ge $blocks ] && break
    sleep 0.1
  done
  [ "$(device_blocks)" -ge $blocks ] || fail "$(device_blocks) of $blocks blocks are on the device"
  ask_warm 12 "device tier" "$cold"
  [ "$(node_metric cairn_local_chunks_total)" -gt 0 ] || fail "the worker got no chunk"
  # They are read, and decoded they are written.
  over_limit 13 "device tier" '<=1.5' '<=1.2' \
    "${device:+($bytes + $fetched * $token_bytes) / ($device * 1e9) + $last}"
}

# ask FILE: sends a prompt of the scratch folder to the worker, and sets `answer`.
ask() {
  answer=$(ours "$bin/cairn" generate --worker "$worker" --raw --max-tokens 1 --json \
    --prompt-file "$scratch/$1") || fail "the worker does not answer"
  echo "$answer" >&2
}

# ask_warm RANK TIER COLD: the prompt of before, whose KV is in the tier. Sets `warm` (s), `fetched`
# (tokens) and `bytes`.
ask_warm() {
  ask prompt
  warm=$(field "$answer" ttft_s) fetched=$(field "$answer" fetched_tokens)
  bytes=$(($(grep -oP '"fetched_bytes":\{\K[^}]*' <<<"$answer" | grep -o '[0-9]*' | paste -sd+)))
  [ "${fetched:-0}" -ge $((tokens / 2)) ] || fail "the request was not warm: $answer"
  row "$1" "TTFT warm, $2: over cold" "$(compute "$warm / $3")" ratio '<=0.05' '<=0.02'
  row $(($1 + 4)) "TTFT warm, $2, $fetched tokens fetched in $recipe" "$warm" s
}

# over_limit RANK TIER FLOOR GOAL SECONDS: `warm` over the least time that it could take.
over_limit() {
  local what="TTFT warm, $2: over (bytes / copies + a block's time)"
  if [ -z "$5" ]; then
    skip "$1" "$what" "the step limits did not run"
  else
    row "$1" "$what" "$(compute "$warm / ($5)")" ratio "$3" "$4"
  fi
}

# print_shares_of_prefill COLD: the worker's prefill next to its products alone, and next to the
# scores of a selection.
print_shares_of_prefill() {
  local products selection what
  products=$(measured "products of a prefill alone, each token")
  selection=$(measured "scores and budgets of ada-snapkv, all layers")
  what="the worker's prefill: its products alone, of its time"
  if [ -n "$products" ]; then
    row 20 "$what" "$(compute "$products * 1e-6 * $tokens / $1")" ratio 0.5 0.75
  else
    skip 20 "$what" "the step rates did not measure the products"
  fi
  what="scores and budgets of ada-snapkv: over the worker's prefill"
  if [ -n "$selection" ]; then
    row 21 "$what" "$(compute "$selection * 1e-3 / $1")" ratio '<=0.02' '<=0.01'
  else
    skip 21 "$what" "the step rates did not measure them"
  fi
}

step_nccl() {
  if ! fake; then
    nccl=$(find_library libnccl.so.2 nccl)
    [ -n "$nccl" ] || skip_step "no libnccl.so.2 where the linker or Python looks"
    # Both processes share a GPU.
    export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=1
  fi
  # shellcheck disable=SC2086
  ours "$bin/cairn_gpu_link" --library "$library" --nccl "$nccl" $tiny_flag
  local code=$?
  [ $code -eq 3 ] && exit 77
  return $code
}

step_torch() {
  command -v python3 >/dev/null || skip_step "there is no python3"
  if fake; then
    # No torch: the same calls on the fake device's memory.
    ours python3 "$here/torch_pages.py" --library "$library" --fake
    return
  fi
  python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
    skip_step "python3 has no torch that sees a GPU"
  # Not with a bundle's libraries: torch has its own.
  python3 "$here/torch_pages.py" --library "$library"
}

# Mistakes and shortages on the device, then a node whose device is not there or is lost under way.
step_faults() {
  probe faults || return
  local load=(ours "$bin/cairn_fault_load" --seed 5 --prompts 20 --mode both --ops 200) report
  if fake; then
    CAIRN_FAKE_DEVICE=$CAIRN_FAKE_DEVICE,fail=work:7:1:lost start_node --host.capacity 16MiB \
      --device.capacity 16MiB --device.chunk 1MiB
    report=$("${load[@]}" --address "$node") || fail "bytes were wrong: $report"
    row 540 "a node whose device is lost under way serves on" 1 ok
  else
    skip 540 "a node whose device is lost under way serves on" "a GPU cannot be lost on demand"
  fi
  # CUDA shows a process no GPU; the fake device has no driver.
  CUDA_VISIBLE_DEVICES='' CAIRN_FAKE_DEVICE=no_driver start_node --host.capacity 16MiB \
    --device.capacity 16MiB --device.chunk 1MiB
  report=$("${load[@]}" --address "$node") || fail "bytes were wrong: $report"
  row 541 "a node without its GPU serves from host memory" 1 ok
}

# The emulation's sanitizers cannot see this: the machine code.
step_sanitizer() {
  fake && skip_step "the presets asan and tsan check the emulated kernels"
  local checker tool filter='*SlicesTest*int8*on_device*:*Pages*on_device*'
  checker=$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer) ||
    skip_step "there is no compute-sanitizer"
  for tool in memcheck racecheck synccheck; do
    (cd "$data" && CAIRN_TEST_DEVICE=$library ours "$checker" --tool $tool --error-exitcode 9 \
      "$tests/codecs_conformance_test" --gtest_filter="$filter") >&2 ||
      fail "compute-sanitizer --tool $tool found something: see the log"
    row 600 "compute-sanitizer: $tool" 1 ok
  done
}

declare -F "step_$1" >/dev/null || fail "there is no step '$1'"
"step_$1"
