#pragma once
// A sequence's KV as attention kernels read it.

#include "cairn/kernels/attention.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/kv/ragged_prefix.h"

namespace cairn::worker {

// One layer of the tokens in the pages: token 0 is at position sequence.base(). Valid while the
// pages are held.
inline kernels::PagedKv PagesView(const KvSequence& sequence, int layer) {
  const KvLayout& kv = sequence.layout();
  kernels::PagedKv view;
  view.pages = sequence.pages().data();
  view.block_tokens = kv.block_tokens;
  view.head_dim = kv.head_dim;
  view.k_offset = static_cast<size_t>(layer) * kv.layer_bytes();
  view.v_offset = view.k_offset + kv.plane_bytes();
  view.head_stride = kv.head_bytes();
  return view;
}

// The rows of one head of a layer before them, as head 0.
inline kernels::PagedKv PrefixView(const RaggedPrefix& prefix, int layer, int head) {
  const KvLayout& kv = prefix.layout();
  kernels::PagedKv view;
  view.pages = prefix.units(layer, head).data();
  view.block_tokens = kv.ragged_unit_rows();
  view.head_dim = kv.head_dim;
  view.v_offset = kv.plane_bytes();
  return view;
}

// The blocks of a window of EarlierKv, for one head, which is read as head 0.
inline kernels::PagedKv WindowView(const KvLayout& kv, std::span<const std::byte* const> slices,
                                   int64_t head) {
  kernels::PagedKv view;
  view.pages = slices.data();
  view.block_tokens = kv.block_tokens;
  view.head_dim = kv.head_dim;
  view.k_offset = static_cast<size_t>(head) * kv.head_bytes();
  view.v_offset = view.k_offset + kv.plane_bytes();
  return view;
}

}  // namespace cairn::worker
