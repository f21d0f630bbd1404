#pragma once
// A fetch of rows: slices of one layer, of the blocks that have wanted rows, become groups of rows.
//
//   LayeredFetch, of the wanted blocks ─ verified slice ─► rows of each wanted head, in one buffer
//                                                          ─► one item for each group
//
// A block on disk gives the pages that have wanted rows (row_pages.h), once its slice was compared
// under the lease.
//
// Work: a slice is hashed once for each lease, or each time if it lies where writers can change it
// (then a copy of it). A call of Next whose deadline has passed hashes a few slices at most before
// it says that it must wait: a few rows of each of many slices are long work, and not that of a
// polling thread. Memory: the groups, and the rows of one slice.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/common/rows.h"
#include "services/cache/store/engine/cache_engine.h"
#include "services/cache/store/engine/fetch_slot.h"
#include "services/cache/store/engine/layered_fetch.h"
#include "services/cache/store/engine/row_pages.h"

namespace cairn::cache {

// Not thread-safe: belongs to one reader.
class RowFetch final : public FetchStream, private WantedRows {
 public:
  // INVALID_ARGUMENT, UNIMPLEMENTED: as RowLayout. RESOURCE_EXHAUSTED: no memory for the groups.
  static Result<std::unique_ptr<FetchStream>> Start(const FetchServices& services,
                                                    const LeasePtr& lease, uint32_t layer,
                                                    std::span<const RowGroup> groups,
                                                    std::string trace);
  Result<std::optional<Item>> Next(TimePoint deadline) override;
  bool lease_ended() const override { return slices_->lease_ended(); }
  bool holds_up_others() const override { return slices_->holds_up_others(); }

 private:
  RowFetch(const FetchServices& services, RowLayout layout, uint32_t layer)
      : services_(services), layout_(std::move(layout)), layer_(layer) {}
  std::span<const RowGroup> GroupsOf(uint32_t block) const;
  bool EachRun(uint32_t block, uint32_t layer, const format::PartRect& part, format::Codec codec,
               uint64_t slice_bytes, const Use& use) const override;
  // Takes the rows of the slice's heads into buffer_. DATA_LOSS: it has no rows.
  Status Gather(const FetchedSlice& slice);

  const FetchServices services_;
  const RowLayout layout_;
  const uint32_t layer_;
  std::unique_ptr<LayeredFetch> slices_;  // Last gone: it keeps the engine, and its account.
  MemoryCharge memory_;                   // The charge of the groups.
  std::vector<uint64_t> masks_;
  std::vector<RowGroup> groups_;  // Their masks are in masks_.
  uint64_t paused_at_ = 0;        // Hashed bytes at the last pause.
  // The rows of the last slice, and how many of them were given out.
  std::vector<FetchedRows> ready_;
  size_t given_ = 0;
};

}  // namespace cairn::cache
