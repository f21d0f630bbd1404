#!/bin/sh
# vllm-mtp.sh MODEL [ARGUMENT...]     The same with the model's own head for drafts (multi-token
# prediction): its KV is stored and loaded with the model's. TOKENS: drafted at a time.
set -eu
[ $# -ge 1 ] || { echo "usage: [TOKENS=1] $0 MODEL [ARGUMENT of vllm serve...]" >&2; exit 2; }
exec "$(dirname "$0")/vllm.sh" "$@" --speculative-config '{
  "method": "mtp",
  "num_speculative_tokens": '"${TOKENS:-1}"'
}'
