#pragma once
// Which tokens of a segment each layer and KV head keeps: one bit per token.

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn::selections {

// Rows are tokens of the segment, from 0. Not thread-safe, but heads may be written by different
// threads.
class KeptRows {
 public:
  KeptRows() = default;
  // Keeps nothing.
  KeptRows(int32_t layers, int32_t kv_heads, int64_t tokens);

  int32_t layers() const { return layers_; }
  int32_t kv_heads() const { return kv_heads_; }
  int64_t tokens() const { return tokens_; }

  // REQUIRES here and below: 0 <= layer < layers(), head < kv_heads(), row < tokens().
  void Keep(int32_t layer, int32_t head, int64_t row) {
    words_[Index(layer, head, row)] |= uint64_t{1} << (row % 64);
  }
  void KeepRange(int32_t layer, int32_t head, int64_t begin, int64_t end);
  void KeepAll();
  bool kept(int32_t layer, int32_t head, int64_t row) const {
    return (words_[Index(layer, head, row)] >> (row % 64) & 1) != 0;
  }

  // Rows kept by one head; by all of them.
  int64_t Count(int32_t layer, int32_t head) const;
  int64_t Count() const;
  // Ascending.
  std::vector<int32_t> Rows(int32_t layer, int32_t head) const;
  // Bit r % 64 of word r / 64 is row r; bits from tokens() on are 0.
  std::span<const uint64_t> Words(int32_t layer, int32_t head) const;

  bool operator==(const KeptRows&) const = default;

 private:
  size_t Index(int32_t layer, int32_t head, int64_t row) const {
    return (static_cast<size_t>(layer) * static_cast<size_t>(kv_heads_) +
            static_cast<size_t>(head)) *
               static_cast<size_t>(words_per_head_) +
           static_cast<size_t>(row / 64);
  }

  int32_t layers_ = 0;
  int32_t kv_heads_ = 0;
  int64_t tokens_ = 0;
  int64_t words_per_head_ = 0;
  std::vector<uint64_t> words_;
};

}  // namespace cairn::selections
