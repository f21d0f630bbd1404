#!/bin/sh
# vllm.sh MODEL [ARGUMENT...]     vLLM whose KV is kept in Cairn.
#                                 ARGUMENTs are those of `vllm serve`.
#
# Models with sliding windows next to full attention, with LoRA adapters (--enable-lora) and with
# draft models (--speculative-config) need nothing more.
set -eu
[ $# -ge 1 ] || { echo "usage: $0 MODEL [ARGUMENT of vllm serve...]" >&2; exit 2; }
exec vllm serve "$@" --kv-transfer-config '{
  "kv_connector": "CairnConnector",
  "kv_connector_module_path": "cairn.vllm",
  "kv_role": "kv_both",
  "kv_load_failure_policy": "recompute",
  "kv_connector_extra_config": {"address": "'"${CAIRN_ADDRESS:-127.0.0.1:7400}"'"}
}'
