#include "common/keys/segment_keys.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace cairn {
namespace {

constexpr std::string_view kSegmentMagic = "cairn.segment.v1";

}  // namespace

BlockKey SegmentKeys::Key(const std::optional<BlockKey>& parent, const BlockKey& end,
                          uint32_t block) {
  std::array<std::byte, kSegmentMagic.size() + size_t{3} * 32 + 4> buffer;
  std::byte* at = buffer.data();
  const auto put = [&at](const void* from, size_t n) {
    std::memcpy(at, from, n);
    at += n;
  };
  put(kSegmentMagic.data(), kSegmentMagic.size());
  put(fingerprint_.bytes.data(), 32);
  put(parent ? parent->bytes.data() : BlockKey{}.bytes.data(), 32);
  put(end.bytes.data(), 32);
  for (int i = 0; i < 4; ++i) *at++ = static_cast<std::byte>(block >> (8 * i));
  return sha_.Update(std::span<const std::byte>(buffer)).Finish();
}

std::vector<BlockKey> SegmentKeys::Keys(const std::optional<BlockKey>& parent, const BlockKey& end,
                                        uint32_t blocks) {
  std::vector<BlockKey> keys;
  keys.reserve(blocks);
  for (uint32_t block = 0; block < blocks; ++block) keys.push_back(Key(parent, end, block));
  return keys;
}

}  // namespace cairn
