#include "cairn/common/seal_copy.h"

#include <vector>

#include "common/memory/bulk_copy.h"

namespace cairn::format {

void SealCopy(std::span<std::byte> part, std::span<const std::byte> payload, Codec codec,
              const PartRect& rect, uint16_t block_tokens, std::span<const uint64_t> slice_lengths,
              bool streaming) {
  CAIRN_CHECK(part.size() == PartBytes(slice_lengths));
  const size_t header_bytes = HeaderBytes(static_cast<uint32_t>(slice_lengths.size()));
  CAIRN_CHECK(header_bytes + payload.size() == part.size());
  std::vector<uint64_t> hashes;
  hashes.reserve(slice_lengths.size());
  size_t at = 0;
  for (const uint64_t length : slice_lengths) {
    hashes.push_back(
        CopyXxh3(part.data() + header_bytes + at, payload.data() + at, length, streaming));
    at += length;
  }
  WriteHeader(part.first(header_bytes), codec, rect, block_tokens, slice_lengths, hashes);
  if (streaming) StreamingFence();
}

}  // namespace cairn::format
