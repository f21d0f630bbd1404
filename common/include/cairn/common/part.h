#pragma once
// The stored form of a part: header, slice table, one contiguous slice per layer.
// docs/inside/formats/part.md draws the bytes.
//
//   0   magic "CAIRNPT1"      8
//   8   header_bytes  u32     header and slice table, padded: a multiple of 64
//   12  version       u16     kPartVersion
//   14  codec         u16     Codec
//   16  layer_begin   u16     |
//   18  layer_end     u16     | the rectangle on the grid layers x KV heads, ends exclusive
//   20  head_begin    u16     |
//   22  head_end      u16     |
//   24  block_tokens  u16     tokens that the part stands for
//   26  flags         u16     bit 0: rows are selected (selected_slice.h)
//   28  slice_count   u32     layer_end - layer_begin
//   32  total_bytes   u64     header and slices
//   40  header_xxh3   u64     XXH3-64 of [0, header_bytes) with this field as 0
//   48  reserved      16 bytes of 0
//   64  slice table: slice_count x { offset u64, length u64, xxh3 u64 }; offsets count from
//       the start of the part
//
// Little-endian. A layer without KV has a slice of length 0 (xxh3 of the empty string). Slices
// follow each other in layer order, without gaps. Every slice is verified on its own, so a reader
// can use layer i before layer i+1 has arrived.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::format {

inline constexpr uint16_t kPartVersion = 1;

// How a slice's numbers are stored.
enum class Codec : uint16_t {
  kRaw = 0,     // As the layout says: plane -> KV head -> token -> dim.
  kOpaque = 1,  // An inference engine's own bytes, never interpreted.
  // Encoded by kernels/codecs, whose registry has the same ids (docs/inside/formats/codecs.md).
  kInt8 = 2,
  kInt4 = 3,
  kTurbo = 4,
  kFp8 = 5,
  kMixed = 6,
  kCacheGen = 7,
};
inline constexpr Codec kLastCodec = Codec::kCacheGen;

// The rectangle of a part on the grid layers x KV heads. Ends are exclusive.
struct PartRect {
  uint16_t layer_begin = 0;
  uint16_t layer_end = 0;
  uint16_t head_begin = 0;
  uint16_t head_end = 0;
  auto operator<=>(const PartRect&) const = default;
  uint32_t Cells() const {
    return static_cast<uint32_t>(layer_end - layer_begin) *
           static_cast<uint32_t>(head_end - head_begin);
  }
  bool Overlaps(const PartRect& o) const {
    return layer_begin < o.layer_end && o.layer_begin < layer_end && head_begin < o.head_end &&
           o.head_begin < head_end;
  }
};

struct SliceEntry {
  uint64_t offset = 0;
  uint64_t length = 0;
  uint64_t xxh3 = 0;
};

struct PartHeader {
  Codec codec = Codec::kRaw;
  PartRect rect;
  uint16_t block_tokens = 0;
  bool selected = false;  // Slices hold selected rows: selected_slice.h.
  uint64_t total_bytes = 0;
  std::vector<SliceEntry> slices;  // One per layer of the rectangle.
};

uint32_t HeaderBytes(uint32_t slice_count);

// The size in bytes of a part whose slices have these lengths.
uint64_t PartBytes(std::span<const uint64_t> slice_lengths);

// Writes the header of a part into `part`. The slices must already lie behind it, and this function
// hashes each. `selected`: as in PartHeader. REQUIRES: part.size() == PartBytes(slice_lengths),
// slice_lengths.size() == rect's layers.
void SealPart(std::span<std::byte> part, Codec codec, const PartRect& rect, uint16_t block_tokens,
              std::span<const uint64_t> slice_lengths, bool selected = false);
// The same for a caller that knows the hashes of the slices, because it hashed them while it
// copied.
void WriteHeader(std::span<std::byte> header, Codec codec, const PartRect& rect,
                 uint16_t block_tokens, std::span<const uint64_t> slice_lengths,
                 std::span<const uint64_t> slice_xxh3, bool selected = false);

// Reads and checks the header: magic, version, header hash, table inside total_bytes, no gaps.
// DATA_LOSS, which names the wrong field. Does not hash the slices. `part` may be a prefix of the
// part if it has the whole header.
Result<PartHeader> ParseHeader(std::span<const std::byte> part);

// The table's entry of a slice, by its number in the part, of a part whose header was checked. So a
// reader need not keep the table. nullopt: it lies outside of the part, which changed since.
std::optional<SliceEntry> SliceAt(std::span<const std::byte> part, uint32_t slice);

// The same of a part of which the header alone is here: `header` has all of it. Where the slice
// lies is as the table says. nullopt: the table has no such entry.
std::optional<SliceEntry> SliceEntryAt(std::span<const std::byte> header, uint32_t slice);

// True when the bytes of the slice match its hash.
bool VerifySlice(const SliceEntry& entry, std::span<const std::byte> slice);
// ParseHeader, and also checks that total_bytes is part.size() and verifies every slice. DATA_LOSS,
// which names the layer.
Result<PartHeader> VerifyPart(std::span<const std::byte> part);

}  // namespace cairn::format
