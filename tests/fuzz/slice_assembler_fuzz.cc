// Pieces of slices from a node that may lie: nothing is written out of bounds, memory stays
// bounded, and no slice is delivered whose bytes do not have the hash that came with it.
//
// First byte: bit 0 the sink has no destinations, bit 1 only a second pass. Then 8 bytes a piece:
// block, layer, slice bytes (2, little-endian), offset (2), data bytes, and flags: bit 0 the data
// is that of the slice, bit 1 the hash, too, bit 2 the data lies in two places, bit 3 the block
// then fails.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "cairn/common/hash.h"
#include "clients/cpp/src/slice_assembler.h"
#include "tests/fuzz/input.h"

namespace {

using namespace cairn;

constexpr size_t kMaxSlice = 1024;

class Sink final : public client::FetchSink {
 public:
  explicit Sink(bool own) : own_(own) {}
  std::span<std::byte> Destination(const client::SliceInfo& slice) override {
    // Slices share the room: what one wrote is nothing to the other.
    static std::vector<std::byte> room(kMaxSlice);
    return own_ || slice.slice_bytes > room.size() ? std::span<std::byte>()
                                                   : std::span(room).first(slice.slice_bytes);
  }
  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override {
    if (data.size() != slice.slice_bytes) std::abort();
    if (own_ && Xxh3(data) != slice.xxh3) std::abort();
    return OkStatus();
  }
  void OnBlockFailed(uint32_t block, client::MissReason) override {
    if (block >= 16) std::abort();
  }

 private:
  const bool own_;
};

// The content of the slice if nobody lies.
std::vector<std::byte> TrueBytes(uint8_t block, uint8_t layer, size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(block * 31 + layer * 7 + i);
  return bytes;
}

}  // namespace

CAIRN_FUZZ_ENTRY(slice_assembler)(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  Sink sink((data[0] & 1) != 0);
  client::SliceAssembler assembler(&sink, {.blocks = 16,
                                           .max_slice_bytes = kMaxSlice,
                                           .max_open_bytes = 4 * kMaxSlice,
                                           .max_retries = 4});
  if ((data[0] & 2) != 0) assembler.BeginRetry();
  for (const uint8_t* at = data + 1; data + size - at >= 8; at += 8) {
    const size_t slice_bytes = at[2] | at[3] << 8, offset = at[4] | at[5] << 8;
    const size_t data_bytes = at[6] * 8u;
    const std::vector<std::byte> whole = TrueBytes(at[0], at[1], slice_bytes);
    // A copy of exactly its size, for the sanitizer's red zones.
    std::vector<std::byte> piece_data(data_bytes);
    if ((at[7] & 1) != 0 && offset < whole.size()) {
      piece_data.resize(std::min(data_bytes, whole.size() - offset));
      std::copy_n(whole.begin() + static_cast<std::ptrdiff_t>(offset), piece_data.size(),
                  piece_data.begin());
    }
    client::SlicePiece piece;
    piece.slice = {.block = at[0],
                   .part = {.layer_begin = 0, .layer_end = 8, .head_begin = 0, .head_end = 1},
                   .layer = at[1],
                   .slice_bytes = slice_bytes,
                   .xxh3 = (at[7] & 2) != 0 ? Xxh3(whole) : 5};
    piece.offset = offset;
    const size_t cut = (at[7] & 4) != 0 ? piece_data.size() / 2 : piece_data.size();
    piece.chunks = {std::span(piece_data).first(cut), std::span(piece_data).subspan(cut)};
    if (!assembler.Take(piece).ok()) return 0;
    if ((at[7] & 8) != 0) assembler.Fail(at[0], client::MissReason::kEvicted);
  }
  assembler.BeginRetry();
  assembler.EndRetry();
  return 0;
}
