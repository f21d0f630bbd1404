#include "kernels/selections/kept_rows.h"

namespace cairn::selections {

KeptRows::KeptRows(int32_t layers, int32_t kv_heads, int64_t tokens)
    : layers_(layers),
      kv_heads_(kv_heads),
      tokens_(tokens),
      words_per_head_((tokens + 63) / 64),
      words_(static_cast<size_t>(layers) * static_cast<size_t>(kv_heads) *
             static_cast<size_t>(words_per_head_)) {}

void KeptRows::KeepRange(int32_t layer, int32_t head, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) Keep(layer, head, row);
}

void KeptRows::KeepAll() {
  for (int32_t layer = 0; layer < layers_; ++layer) {
    for (int32_t head = 0; head < kv_heads_; ++head) KeepRange(layer, head, 0, tokens_);
  }
}

int64_t KeptRows::Count(int32_t layer, int32_t head) const {
  int64_t count = 0;
  for (const uint64_t word : Words(layer, head)) count += std::popcount(word);
  return count;
}

int64_t KeptRows::Count() const {
  int64_t count = 0;
  for (const uint64_t word : words_) count += std::popcount(word);
  return count;
}

std::vector<int32_t> KeptRows::Rows(int32_t layer, int32_t head) const {
  std::vector<int32_t> rows;
  rows.reserve(static_cast<size_t>(Count(layer, head)));
  const std::span<const uint64_t> words = Words(layer, head);
  for (size_t w = 0; w < words.size(); ++w) {
    for (uint64_t left = words[w]; left != 0; left &= left - 1) {
      rows.push_back(static_cast<int32_t>(w * 64) + std::countr_zero(left));
    }
  }
  return rows;
}

std::span<const uint64_t> KeptRows::Words(int32_t layer, int32_t head) const {
  return std::span(words_).subspan(Index(layer, head, 0), static_cast<size_t>(words_per_head_));
}

}  // namespace cairn::selections
