#pragma once
// A chunk's rows in a pass on a device.

#include <vector>

#include "services/worker/compute/device/kv_mirror.h"
#include "services/worker/compute/transformer.h"

namespace cairn::worker {

struct DeviceRun {
  const SequenceChunk* chunk = nullptr;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_position = 0;
  std::vector<KvMirror::Slot*> slots;  // The slots of all pages up to the last new token.

  bool decodes() const { return chunk->phase == Phase::kDecode; }
  // In the pages, before and after the pass.
  int64_t tokens_before() const { return first_position - chunk->sequence->base(); }
  int64_t tokens_after() const { return tokens_before() + rows; }
};

// Tokens of page `page` that lie in [begin, end) of the sequence's pages, from 0 for the page's
// first one; empty: none.
struct PageTokens {
  int64_t begin = 0;
  int64_t end = 0;
};
inline PageTokens TokensIn(int64_t page, int64_t begin, int64_t end, int64_t block_tokens) {
  const int64_t first = page * block_tokens;
  return {std::max<int64_t>(begin - first, 0), std::min(end - first, block_tokens)};
}

// Calls visit(offset, bytes) for the runs of bytes that such tokens take in a layer of a page,
// offsets from the page's begin.
template <typename Visitor>
void ForEachRowRun(const KvLayout& kv, int layer, PageTokens tokens, Visitor&& visit) {
  const size_t begin = kv.layer_bytes() * static_cast<size_t>(layer);
  if (tokens.begin == 0 && tokens.end == kv.block_tokens) return visit(begin, kv.layer_bytes());
  const size_t bytes = static_cast<size_t>(tokens.end - tokens.begin) * kv.row_bytes();
  const size_t first = static_cast<size_t>(tokens.begin) * kv.row_bytes();
  for (size_t head = 0; head < 2 * static_cast<size_t>(kv.kv_heads); ++head) {
    visit(begin + head * kv.head_bytes() + first, bytes);
  }
}

}  // namespace cairn::worker
