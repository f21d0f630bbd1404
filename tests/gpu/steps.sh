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

# start NAME PROGRAM ARGUMENTS...: waits for "ready grpc=ADDRESS admin=ADDRESS" and sets `address`.
start() {
  local name=$1 line=
  shift
  ours "$@" >"$scratch/$name.out" 2>&2 &
  local pid=$!
  until line=$(grep -m 1 '^ready grpc=' "$scratch/$name.out"); do
    kill -0 $pid 2>/dev/null || fail "$name ended before it served"
    sleep 0.1
  done
  address=${line#ready grpc=} && address=${address%% *}
}

start_node() {
  start node "$bin/cairn-cache" --listen 127.0.0.1:0 --admin.listen 127.0.0.1:0 \
    --device.library "$library" "$@"
  node=$address
}

# A number of `cairn stat --json`, by a regular expression up to it.
node_number() {
  ours "$bin/cairn" stat --cache "$node" --json | tr -d '\n ' | grep -oP "$1\\K[0-9.]+"
}
device_blocks() { node_number '"device":\{[^}]*?"blocks":'; }
device_reads() { node_number '"device":\{[^}]*?"read_bytes":'; }

# A field of the object that `cairn generate --json` prints.
field() { grep -oP "\"$2\":\\K[0-9.e-]+" <<<"$1"; }

# ---- Steps ----

step_limits() { probe limits; }

# Every suite of kernels over the device; bounds and inputs are those of CPUs and emulation.
step_conformance() {
  local suite filter out passed skipped failed=0
  for suite in codecs selections kernels; do
    filter='*on_device*'
    # The emulation takes minutes for all of them; CI runs them all without a device between.
    if fake; then
      case $suite in
        codecs) filter='*SlicesTest*int8*on_device*:*Hash*on_device*:*CodecKernels*on_device*' ;;
        selections) filter='*Selection*Test*on_device*' ;;
        kernels) filter='*Batch*on_device*:*PagesTest*on_device*' ;;
      esac
    fi
    out=$scratch/$suite.out
    (cd "$data" && CAIRN_TEST_DEVICE=$library ours "$tests/${suite}_conformance_test" \
      --gtest_filter="$filter" --gtest_brief=0) >"$out" 2>&1
    local code=$?
    passed=$(grep -oP '^\[  PASSED  \] \K\d+' "$out")
    skipped=$(grep -oP '^\[  SKIPPED \] \K\d+' "$out" | head -1)
    row 110 "conformance of kernels: $suite" "${passed:-0}" passed - - "${skipped:-0} skipped"
    cat "$out" >&2
    if [ $code -ne 0 ] || [ "${passed:-0}" -eq 0 ]; then
      failed=1
      grep -m 5 '^\[  FAILED  \]' "$out" >&2
    fi
  done
  [ $failed -eq 0 ] || fail "a suite failed: see the log above"
}

step_rates() {
  local failed=0
  probe slices || failed=1
  probe attention || failed=1
  return $failed
}

step_chunks() {
  local failed=0
  probe chunks || failed=1
  probe neighbour || failed=1
  return $failed
}

# Blocks that a client writes and reads go to the device of another process and come back, and each
# byte is compared.
step_tier() {
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

# The prompt again, after its KV went to the node: what a request waits for its first token.
step_warm() {
  local tokens=32768 shapes=8b context=33024 kv=6GiB host=12GiB vram=4GiB answer
  if fake; then tokens=136 shapes=tiny context=256 kv=8MiB host=256MiB vram=64MiB; fi
  ours "$bin/cairn_seeded_model" $shapes "$scratch/model.gguf" "$scratch/prompt" $tokens ||
    fail "no model"
  head -c 48 "$scratch/prompt" >"$scratch/short"
  local recipe=turbo:bits=4
  start_node --host.capacity $host --device.capacity $vram
  start worker "$bin/cairn-worker" --listen 127.0.0.1:0 --admin.listen 127.0.0.1:0 \
    --model "$scratch/model.gguf" --device cuda:0 --device_library "$library" --device_kv $kv \
    --context $context --cache.address "$node" --cache.recipe $recipe --cache.choose false
  local ask=(ours "$bin/cairn" generate --worker "$address" --raw --max-tokens 1 --json)
  # Wakes clocks and loads kernels.
  answer=$("${ask[@]}" --prompt-file "$scratch/short") || fail "the worker does not answer"
  answer=$("${ask[@]}" --prompt-file "$scratch/short") || fail "the worker does not answer"
  local last cold warm fetched bytes
  last=$(field "$answer" ttft_s)
  answer=$("${ask[@]}" --prompt-file "$scratch/prompt") || fail "the cold request failed"
  echo "$answer" >&2
  cold=$(field "$answer" ttft_s)
  [ "$(field "$answer" fetched_tokens)" = 0 ] || fail "the first request was not cold: $answer"
  row 14 "TTFT cold, $tokens tokens, $shapes shapes" "$cold" s
  answer=$("${ask[@]}" --prompt-file "$scratch/prompt") || fail "the warm request failed"
  echo "$answer" >&2
  warm=$(field "$answer" ttft_s) fetched=$(field "$answer" fetched_tokens)
  bytes=$(grep -oP '"fetched_bytes":\{"host":\K[0-9]+' <<<"$answer")
  [ "${fetched:-0}" -ge $((tokens / 2)) ] || fail "the second request was not warm: $answer"
  row 12 "TTFT warm, $fetched tokens fetched in $recipe" "$warm" s
  row 10 "TTFT warm: over cold" "$(awk -v w="$warm" -v c="$cold" 'BEGIN { print w / c }')" ratio \
    '<=0.05' '<=0.02'
  local link
  link=$(awk -F'\t' '$3 == "pinned copies, host to device" { print $4 * 1e9 }' "$rows")
  if [ -n "$link" ]; then
    row 11 "TTFT warm: over (bytes / pinned copies + a block's time)" "$(awk -v w="$warm" \
      -v b="$bytes" -v r="$link" -v l="$last" 'BEGIN { print w / (b / r + l) }')" ratio \
      '<=1.3' '<=1.1'
  else
    skip 11 "TTFT warm: over (bytes / pinned copies + a block's time)" "the step limits did not run"
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

# What the emulation's sanitizers cannot see: the machine code.
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
