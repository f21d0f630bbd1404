#pragma once
// The pages of a slice that have wanted rows: which ones are read from a slower tier, and their
// bytes when they are here.
//
//   WantedRows ─ runs of bytes ─► PagesToRead ─ runs of pages ─► read ─► SlicePieces ─► rows

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cairn/common/part.h"
#include "services/cache/store/lease/known_parts.h"

namespace cairn::cache {

// Which bytes of slices a fetch wants.
class WantedRows {
 public:
  using Use = std::function<void(uint64_t offset, uint64_t bytes)>;
  virtual ~WantedRows() = default;
  // Calls `use` for each run of bytes that is wanted of the slice of `layer`. False: no writer
  // stores such a slice.
  virtual bool EachRun(uint32_t block, uint32_t layer, const format::PartRect& part,
                       format::Codec codec, uint64_t slice_bytes, const Use& use) const = 0;
};

// Chooses the pages of one slice that are read. Not thread-safe.
class PagesToRead {
 public:
  // Fewer and larger reads are better, as long as no more is read than this many times what is
  // wanted, in pages of the slice.
  static constexpr uint64_t kMostForOne = 3;
  // A read of its own costs about as much as this many pages.
  static constexpr uint64_t kWidestGap = 4;

  explicit PagesToRead(const format::SliceEntry& slice);
  // REQUIRES: within the slice.
  void Want(uint64_t offset, uint64_t bytes);
  // In ascending order, not empty runs; nothing was wanted: none. One run of all pages: the slice
  // is read whole.
  std::vector<SlicePages> Runs() const;

 private:
  const format::SliceEntry slice_;
  const SlicePages pages_;
  std::vector<bool> wanted_;  // By page of the slice, as it lies in its part.
  std::vector<bool> units_;   // By 4 KiB from the slice's first byte.
};

// Some pages of a slice that were read, and their hashes. Not thread-safe. Borrows the bytes.
class SlicePieces {
 public:
  explicit SlicePieces(const format::SliceEntry& slice) : slice_(slice) {}
  // The bytes of the pages `run`, as far as the part goes, and the hashes of what the slice has in
  // each. In ascending order.
  void Add(const SlicePages& run, std::span<const std::byte> bytes,
           std::span<const uint64_t> hashes);

  uint64_t bytes() const { return bytes_; }
  // Compares every page with its hash.
  bool Verify() const;
  // These bytes of the slice; empty: they are not all here.
  std::span<const std::byte> At(uint64_t offset, uint64_t bytes) const;

 private:
  struct Piece {
    SlicePages run;
    std::span<const std::byte> bytes;  // From the first byte of the first page on.
    std::vector<uint64_t> hashes;
  };
  const format::SliceEntry slice_;
  std::vector<Piece> pieces_;
  uint64_t bytes_ = 0;
};

}  // namespace cairn::cache
