#include "clients/python/src/sealing.h"

#include <algorithm>
#include <cstring>

#include "common/hash/xxh3_stream.h"
#include "common/memory/bulk_copy.h"

namespace cairn::python {
namespace {

// Hashed out of memory, then copied out of the cache: so little at a time that reads and writes of
// memory overlap. Whole runs of 96 KiB took a quarter more time.
constexpr size_t kStep = 2 << 10;
constexpr size_t kLine = 64;  // The unit of streaming stores, which should be whole.

void HashAndCopy(std::byte* to, std::span<const std::byte> from, bool streaming, Xxh3Stream* hash) {
  size_t step = kStep - reinterpret_cast<uintptr_t>(to) % kLine;
  while (!from.empty()) {
    const std::span<const std::byte> some = from.first(std::min(step, from.size()));
    hash->Update(some);
    if (streaming) {
      StreamingCopy(to, some.data(), some.size());
    } else {
      std::memcpy(to, some.data(), some.size());
    }
    to += some.size();
    from = from.subspan(some.size());
    step = kStep;
  }
}

}  // namespace

Result<std::vector<uint64_t>> SliceLengths(const Layout& layout, const format::PartRect& rect,
                                           uint64_t bytes, const Field& field) {
  if (!layout.IsNative()) {
    const uint64_t most = layout.MaxPartBytesOf(layout.PoolOf(rect));
    if (bytes == 0 || bytes > most) {
      return InvalidArgument("field '{}': got {} bytes, expected 1 to {}", field, bytes, most);
    }
    return std::vector<uint64_t>{bytes};
  }
  std::vector<uint64_t> lengths;
  uint64_t expected = 0;
  for (uint32_t layer = rect.layer_begin; layer < rect.layer_end; ++layer) {
    lengths.push_back(layout.SliceBytes(layer, rect.head_begin, rect.head_end));
    expected += lengths.back();
  }
  if (bytes != expected) {
    return InvalidArgument("field '{}': got {} bytes, expected {}", field, bytes, expected);
  }
  return lengths;
}

void SealPieces(std::span<std::byte> room, const PartContent& content, format::Codec codec,
                const format::PartRect& rect, uint16_t block_tokens, bool streaming) {
  const auto& [pieces, lengths] = content;
  const uint32_t header_bytes = format::HeaderBytes(static_cast<uint32_t>(lengths.size()));
  std::vector<uint64_t> hashes;
  hashes.reserve(lengths.size());
  uint64_t at = 0;
  for (const uint64_t length : lengths) {
    std::byte* const to = room.data() + header_bytes + at;
    if (const auto from = pieces.Contiguous(at, length); !from.empty()) {
      hashes.push_back(CopyXxh3(to, from.data(), length, streaming));
    } else {
      Xxh3Stream hash;
      pieces.ForEachRun(at, length, [&](std::span<const std::byte> run, uint64_t done) {
        HashAndCopy(to + done, run, streaming, &hash);
      });
      hashes.push_back(hash.Digest());
    }
    at += length;
  }
  format::WriteHeader(room.first(header_bytes), codec, rect, block_tokens, lengths, hashes);
  if (streaming) StreamingFence();
}

}  // namespace cairn::python
