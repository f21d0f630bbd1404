#include "services/worker/session/parked_kv.h"

#include <cstring>

namespace cairn::worker {

size_t ParkedKv::Bytes(const KvLayout& layout, int64_t tokens) {
  const int64_t pages = (tokens + layout.block_tokens - 1) / layout.block_tokens;
  return static_cast<size_t>(pages) * layout.page_bytes();
}

std::optional<ParkedKv> ParkedKv::Of(const KvSequence& sequence) {
  CAIRN_CHECK(sequence.base() == 0);
  const KvLayout& layout = sequence.layout();
  ParkedKv parked;
  parked.tokens_ = sequence.length();
  parked.bytes_.resize(Bytes(layout, parked.tokens_));
  std::byte* to = parked.bytes_.data();
  const auto pages = static_cast<int64_t>(parked.bytes_.size() / layout.page_bytes());
  for (int64_t page = 0; page < pages; ++page) {
    for (int layer = 0; layer < layout.layers; ++layer) {
      std::memcpy(to, sequence.LayerSlice(page, layer).data(), layout.layer_bytes());
      to += layout.layer_bytes();
    }
  }
  if (sequence.FirstBrokenLoan() != sequence.page_count()) return std::nullopt;
  return parked;
}

void ParkedKv::Restore(KvSequence& sequence) const {
  const KvLayout& layout = sequence.layout();
  CAIRN_CHECK(sequence.length() == 0 && sequence.capacity() >= tokens_);
  const std::byte* from = bytes_.data();
  const auto pages = static_cast<int64_t>(bytes_.size() / layout.page_bytes());
  for (int64_t page = 0; page < pages; ++page) {
    for (int layer = 0; layer < layout.layers; ++layer) {
      std::memcpy(sequence.LayerSlice(page, layer).data(), from, layout.layer_bytes());
      from += layout.layer_bytes();
    }
  }
  sequence.SetLength(tokens_);
}

}  // namespace cairn::worker
