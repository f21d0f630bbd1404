#!/bin/sh
# sglang.sh MODEL [ARGUMENT...]     SGLang's hierarchical cache, with Cairn as its storage.
#                                   ARGUMENTs are those of `sglang.launch_server`.
set -eu
[ $# -ge 1 ] || { echo "usage: $0 MODEL [ARGUMENT of sglang.launch_server...]" >&2; exit 2; }
model=$1
shift
exec python3 -m sglang.launch_server --model-path "$model" --page-size 64 \
  --enable-hierarchical-cache --hicache-storage-backend dynamic \
  --hicache-storage-backend-extra-config '{
    "backend_name": "cairn",
    "module_path": "cairn.sglang",
    "class_name": "CairnStorage",
    "interface_v1": 1,
    "address": "'"${CAIRN_ADDRESS:-127.0.0.1:7400}"'"
  }' "$@"
