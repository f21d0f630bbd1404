#!/bin/sh
# lmcache.sh MODEL [ARGUMENT...]     vLLM with LMCache in its process, and Cairn as LMCache's remote
# storage. The node's address stands in lmcache.yaml.
set -eu
[ $# -ge 1 ] || { echo "usage: $0 MODEL [ARGUMENT of vllm serve...]" >&2; exit 2; }
export LMCACHE_CONFIG_FILE="${LMCACHE_CONFIG_FILE:-$(dirname "$0")/lmcache.yaml}"
# Why these two switches: docs/program/engines/lmcache.md.
export VLLM_USE_V2_MODEL_RUNNER=0
exec vllm serve "$@" --no-async-scheduling --kv-transfer-config '{
  "kv_connector": "LMCacheConnectorV1",
  "kv_role": "kv_both",
  "kv_load_failure_policy": "recompute"
}'
