#!/bin/sh
# vllm-tier.sh MODEL [ARGUMENT...]     vLLM's own offloading to host memory, with Cairn below it.
# BYTES: of host memory that vLLM takes, by default 8 GiB.
set -eu
[ $# -ge 1 ] || { echo "usage: [BYTES=N] $0 MODEL [ARGUMENT of vllm serve...]" >&2; exit 2; }
exec vllm serve "$@" --kv-transfer-config '{
  "kv_connector": "OffloadingConnector",
  "kv_role": "kv_both",
  "kv_load_failure_policy": "recompute",
  "kv_connector_extra_config": {
    "spec_name": "TieringOffloadingSpec",
    "cpu_bytes_to_use": '"${BYTES:-8589934592}"',
    "secondary_tiers": [{
      "type": "CairnTier",
      "module_path": "cairn.vllm",
      "address": "'"${CAIRN_ADDRESS:-127.0.0.1:7400}"'"
    }]
  }
}'
