#pragma once
// Keeps the slices of segments that a fetch brings until all have come, and then makes rows of
// them.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/common/clock.h"
#include "cairn/kernels/thread_pool.h"
#include "services/worker/compute/slice_loader.h"
#include "services/worker/kv/ragged_prefix.h"
#include "services/worker/session/fetched_bytes.h"
#include "services/worker/session/kv_codec.h"
#include "services/worker/session/selected_slice_codec.h"

namespace cairn::worker {

// For one call of CacheClient::Fetch. Slices in the node's memory stay there until they are
// decoded. Other slices are copied unchanged. Rows are decoded when the whole path has come,
// because the place of a block's rows depends on how many rows each head kept before it. For a
// worker on a device, a loader decodes them there; what it cannot do, the CPU does. References must
// outlive it. Not thread-safe.
class SegmentSink final : public client::FetchSink {
 public:
  struct Options {
    bool lend = true;                          // Decode out of the node's memory if possible.
    SliceLoader* loader = nullptr;             // Null: there is no device.
    const Clock* clock = &SteadyClock::Get();  // The clock that measures the time of the device.
  };
  SegmentSink(const KvLayout& kv, const KvCodec& codec, uint32_t blocks, const Options& options);

  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override;
  void OnBlockFailed(uint32_t block, client::MissReason reason) override;
  bool WantsLent() const override { return options_.lend; }
  Status OnLentSlice(const client::SliceInfo& slice, std::span<const std::byte> data,
                     std::shared_ptr<const client::LentHold> hold) override;

  // Blocks that came completely, from the first.
  uint32_t CompletePrefix() const;
  // Why block `block` did not come. kNone: it came, or the reason is unknown.
  MissReason Reason(uint32_t block) const { return reasons_[block]; }
  const BytesByTier& bytes() const { return bytes_; }

  // Rows of each head in the first `blocks` blocks: [layers][kv_heads].
  std::vector<int64_t> Rows(uint32_t blocks) const;
  // Decodes the first `blocks` blocks into `builder`, which must have room for them. Returns the
  // first block with bytes that no encoder wrote. nullopt: all blocks are good, or the node has
  // taken its memory back (then Intact() is false and the rows mean nothing). REQUIRES: blocks <=
  // CompletePrefix().
  std::optional<uint32_t> Decode(uint32_t blocks, kernels::ThreadPool& pool,
                                 RaggedBuilder* builder) const;
  bool Intact() const;

 private:
  // A slice as it came, and the heads of which its rows count.
  struct Stored {
    std::span<const std::byte> bytes = {};
    uint64_t xxh3 = 0;
    uint32_t block = 0;
    uint32_t layer = 0;
    std::vector<uint32_t> heads = {};
  };

  Status Take(const client::SliceInfo& slice, std::span<const std::byte> data);
  std::optional<uint32_t> DecodeOnCpu(uint32_t blocks, kernels::ThreadPool& pool,
                                      RaggedBuilder* builder) const;
  std::optional<uint32_t> DecodeOnDevice(uint32_t blocks, RaggedBuilder* builder) const;
  // Decodes one slice, because the device could not do it. False: no encoder wrote it, or it has
  // changed since it came.
  bool DecodeStored(const Stored& stored, RaggedBuilder* builder) const;
  size_t Cell(uint32_t block, uint32_t layer, uint32_t head) const {
    return (static_cast<size_t>(block) * static_cast<size_t>(kv_.layers) + layer) *
               static_cast<size_t>(kv_.kv_heads) +
           head;
  }

  const KvLayout& kv_;
  const KvCodec& codec_;
  const uint32_t blocks_;
  const Options options_;
  std::vector<std::optional<SelectedHead>> heads_;  // [block][layer][head]
  std::vector<Stored> slices_;                      // In the order in which they came.
  std::vector<uint32_t> missing_;                   // Heads of all layers, by block.
  std::vector<MissReason> reasons_;
  std::vector<std::vector<std::byte>> copies_;  // The memory that heads_ points into, or:
  std::vector<std::shared_ptr<const client::LentHold>> holds_;
  BytesByTier bytes_;
};

}  // namespace cairn::worker
