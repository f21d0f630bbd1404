#include "common/format/selected_slice.h"

#include <cstring>

namespace cairn::format {

void WriteMasks(std::span<const uint64_t> words, std::vector<std::byte>* slice) {
  const auto bytes = std::as_bytes(words);
  slice->insert(slice->end(), bytes.begin(), bytes.end());
}

Result<std::vector<uint64_t>> ReadMasks(std::span<const std::byte> slice, uint32_t heads,
                                        uint32_t block_tokens) {
  const uint64_t bytes = MaskBytes(heads, block_tokens);
  if (slice.size() < bytes) {
    return Errorf(StatusCode::kDataLoss, "slice: got {} bytes, the masks of {} heads have {}",
                  slice.size(), heads, bytes);
  }
  const uint32_t words = MaskWords(block_tokens);
  std::vector<uint64_t> masks(size_t{heads} * words);
  std::memcpy(masks.data(), slice.data(), bytes);
  const uint32_t last = block_tokens % 64;
  for (uint32_t head = 0; head < heads && last != 0; ++head) {
    if (masks[size_t{head} * words + words - 1] >> last != 0) {
      return Errorf(StatusCode::kDataLoss, "slice: the mask of head {} keeps tokens beyond {}",
                    head, block_tokens);
    }
  }
  return masks;
}

}  // namespace cairn::format
