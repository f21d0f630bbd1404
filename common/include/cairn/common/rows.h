#pragma once
// Rows of blocks: the keys and values of some tokens, of one layer and one KV head. A reader
// fetches them if it wants only the tokens that it attends to.
//
// The form of a group of rows is that of a selected head (docs/inside/formats/part.md, "Selected
// rows"): the codec's bytes of a slice of one head, keys and values, with the wanted rows as its
// tokens. So a codec decodes it as a slice of n tokens and one head, whose first position is 0 only
// if row 0 of the block at position 0 is among them.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"

namespace cairn {

// Limit for the groups of one fetch of rows.
inline constexpr size_t kMaxRowGroups = 16384;
// Limit for one group: it travels in one piece.
inline constexpr uint64_t kMaxRowGroupBytes = 1 << 20;

// Some rows of one KV head of one block. The layer is that of the fetch.
struct RowGroup {
  uint32_t block = 0;  // The number of the block in the lease, from 0.
  uint32_t head = 0;   // KV head of the layout, from 0.
  // Bit t % 64 of word t / 64 is token t of the block. As many words as block_tokens need, and at
  // least one bit. Borrowed: valid as long as whoever made the group says.
  std::span<const uint64_t> mask = {};

  uint32_t rows() const {
    uint32_t count = 0;
    for (const uint64_t word : mask) count += static_cast<uint32_t>(std::popcount(word));
    return count;
  }
};

// The description of a group of rows, without its bytes.
struct RowsInfo {
  uint32_t block = 0;
  uint32_t layer = 0;
  uint32_t head = 0;
  format::Codec codec = format::Codec::kRaw;
  // The hash of the whole slice that the rows are from, as its writer computed it. Two groups with
  // the same one are from the same bytes.
  uint64_t slice_xxh3 = 0;

  friend bool operator==(const RowsInfo&, const RowsInfo&) = default;
};

// XXH3-64, seed 0, of: block, layer, head, codec as u32, slice_xxh3 as u64, the words of the mask,
// then the rows' bytes. Little-endian. So rows of another place, or others than were asked for, do
// not match it.
uint64_t HashRows(const RowsInfo& info, std::span<const uint64_t> mask,
                  std::span<const std::byte> rows);

// Where the rows of each head lie in one slice. Immutable; thread-safe.
class SliceRows {
 public:
  // One plane: [heads]{ sinks x sink_bytes, the other tokens x row_bytes }.
  struct PlaneRows {
    uint64_t offset = 0;      // Where the part's first head begins in the slice.
    uint64_t head_bytes = 0;  // From one head to the next.
    uint64_t row_bytes = 0;
    uint64_t sink_bytes = 0;  // Bytes of a row among the first `sinks`.
    uint32_t sinks = 0;
  };
  static constexpr size_t kMaxPlanes = 8;

  // `first_head`: of the part. `heads`: how many it has.
  SliceRows(uint32_t block_tokens, uint32_t first_head, uint32_t heads)
      : block_tokens_(block_tokens), first_head_(first_head), heads_(heads) {}
  void Add(const PlaneRows& plane) { planes_[count_++] = plane; }

  bool has(uint32_t head) const { return head >= first_head_ && head - first_head_ < heads_; }
  std::span<const PlaneRows> planes() const { return {planes_.data(), count_}; }
  uint32_t block_tokens() const { return block_tokens_; }
  // Where token `token` of `head` lies in the slice, and how long it is.
  struct Place {
    uint64_t offset = 0, bytes = 0;
  };
  Place At(const PlaneRows& plane, uint32_t head, uint32_t token) const {
    const uint64_t base = plane.offset + uint64_t{head - first_head_} * plane.head_bytes;
    if (token < plane.sinks) return {base + token * plane.sink_bytes, plane.sink_bytes};
    return {base + plane.sinks * plane.sink_bytes + (token - plane.sinks) * plane.row_bytes,
            plane.row_bytes};
  }

  // Calls use(offset, bytes) for each run of neighbouring rows, in the order of a group's bytes:
  // plane by plane, and in each by token. REQUIRES: has(head).
  template <typename Use>
  void ForEachRun(uint32_t head, std::span<const uint64_t> mask, Use&& use) const {
    for (const PlaneRows& plane : planes()) {
      Place run;
      ForEachToken(mask, [&](uint32_t token) {
        const Place row = At(plane, head, token);
        if (run.bytes > 0 && run.offset + run.bytes == row.offset) {
          run.bytes += row.bytes;
          return;
        }
        if (run.bytes > 0) use(run.offset, run.bytes);
        run = row;
      });
      if (run.bytes > 0) use(run.offset, run.bytes);
    }
  }
  uint64_t Bytes(uint32_t head, std::span<const uint64_t> mask) const {
    uint64_t total = 0;
    ForEachRun(head, mask, [&](uint64_t, uint64_t bytes) { total += bytes; });
    return total;
  }
  // REQUIRES: has(head); `slice` is whole; `out` has Bytes(head, mask) bytes.
  void Gather(std::span<const std::byte> slice, uint32_t head, std::span<const uint64_t> mask,
              std::byte* out) const {
    ForEachRun(head, mask, [&](uint64_t offset, uint64_t bytes) {
      std::memcpy(out, slice.data() + offset, bytes);
      out += bytes;
    });
  }

  template <typename Use>
  static void ForEachToken(std::span<const uint64_t> mask, Use&& use) {
    for (size_t w = 0; w < mask.size(); ++w) {
      for (uint64_t left = mask[w]; left != 0; left &= left - 1) {
        use(static_cast<uint32_t>(w * 64) + static_cast<uint32_t>(std::countr_zero(left)));
      }
    }
  }

 private:
  uint32_t block_tokens_;
  uint32_t first_head_;
  uint32_t heads_;
  std::array<PlaneRows, kMaxPlanes> planes_ = {};
  size_t count_ = 0;
};

// How the rows of a namespace lie in its slices. Immutable; thread-safe.
class RowLayout {
 public:
  // UNIMPLEMENTED, which names the recipe: its rows have no fixed place (a codec that groups
  // tokens or codes entropy, or a selection). The same for an opaque layout, and for planes that do
  // not have a head for each KV head. Other errors: those of CheckNamespace and PartCodecsOf.
  static Result<RowLayout> Of(const NamespaceSpec& spec);

  uint32_t block_tokens() const { return layout_.block_tokens; }
  uint32_t mask_words() const { return (layout_.block_tokens + 63) / 64; }
  uint32_t layers() const { return layout_.Layers(); }
  uint32_t heads() const { return layout_.KvHeads(); }

  // INVALID_ARGUMENT, which names the group and its field: 1 to kMaxRowGroups groups, in ascending
  // order of block and head, of blocks before `blocks` and heads of the layout, with masks of
  // mask_words() words, with a bit, and none after the last token; at most kMaxRowGroupBytes each.
  // `layer`: a layer with planes.
  Status Check(uint32_t layer, std::span<const RowGroup> groups, uint32_t blocks) const;

  // False: a group of these rows cannot have that many bytes. REQUIRES: `layer` has planes.
  bool IsSize(uint32_t layer, format::Codec codec, std::span<const uint64_t> mask,
              uint64_t bytes) const;
  // Where rows lie in the slice of `layer` of a part. DATA_LOSS: no writer stores such a slice.
  Result<SliceRows> In(uint32_t layer, const format::PartRect& part, format::Codec codec,
                       uint64_t slice_bytes) const;

 private:
  // How one codec of the recipe stores rows. Sizes are those of a head of this many dimensions.
  struct Rung {
    format::Codec codec = format::Codec::kRaw;
    uint32_t sinks = 0;  // Sinks of the block at position 0.
    // Bytes of a row, by group of layers and plane.
    std::vector<std::vector<uint64_t>> row_bytes = {};
  };
  explicit RowLayout(Layout layout) : layout_(std::move(layout)) {}
  // The group of the layer in the layout; nullptr after the last layer.
  const LayerGroup* GroupOf(uint32_t layer, size_t* index) const;

  Layout layout_;  // Native.
  std::vector<Rung> rungs_;
};

}  // namespace cairn
