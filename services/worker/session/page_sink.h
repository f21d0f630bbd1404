#pragma once
// Puts the slices that a fetch brings into the pages of a sequence.

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/common/clock.h"
#include "services/worker/compute/slice_loader.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/session/fetch_progress.h"
#include "services/worker/session/kv_codec.h"

namespace cairn::worker {

// For one call of CacheClient::Fetch. Slices of all heads go directly to their place in the page,
// and others through the client's buffer. Bytes in the node's memory are not copied: a block whose
// part covers all layers and heads has the order of a page, so the sequence reads it there. Slices
// of blocks that the engine has claimed, and slices that have already come, are dropped. A slice in
// a codec other than raw is decoded into its page, from wherever it lies. Its part must then have
// all heads. With a ladder, the slices of one fetch may have any of its codecs.
//
// For a worker on a device, a loader decodes such slices there, some at a time, and those that lie
// in the device's memory, whatever their codec. A slice that the loader cannot decode goes the
// other way.
//
// References must outlive it. Not thread-safe: the thread that calls Fetch uses it.
class PageSink final : public client::FetchSink {
 public:
  struct Options {
    bool lend = true;                       // Read the node's memory in place if possible.
    SliceLoader* loader = nullptr;          // Null: there is no device.
    std::span<const uint64_t> stamps = {};  // With a loader: of the sequence's first pages.
    // The clock that measures how long slices wait for others.
    const Clock* clock = &SteadyClock::Get();
  };
  PageSink(const KvLayout& kv, const KvCodec& codec, KvSequence& sequence, FetchProgress& progress,
           const Options& options);
  // The client writes to no destination any more.
  ~PageSink() override;

  std::span<std::byte> Destination(const client::SliceInfo& slice) override;
  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override;
  void OnBlockFailed(uint32_t block, client::MissReason reason) override;
  bool WantsLent() const override { return options_.lend; }
  Status OnLentSlice(const client::SliceInfo& slice, std::span<const std::byte> data,
                     std::shared_ptr<const client::LentHold> hold) override;
  std::string WantsDevice() const override;
  Result<std::vector<client::DeviceRead>> OnDeviceSlices(
      std::span<const client::DeviceSlice> slices) override;
  // Decodes the slices that came and wait for others. To be called when Fetch has returned.
  void Flush();

  // False when a slice was decoded from a later rung of a ladder than the one that is pushed: its
  // numbers are others, under the same key.
  bool as_pushed() const { return as_pushed_; }

 private:
  bool Fits(const client::SliceInfo& slice) const;
  bool AllHeads(const client::SliceInfo& slice) const;
  // Position of the first token of its block.
  uint64_t FirstPosition(const client::SliceInfo& slice) const;
  void CopyHeads(const client::SliceInfo& slice, std::span<const std::byte> data,
                 std::span<std::byte> page) const;
  // Copies into the sequence's own page. REQUIRES: permission to write to the block.
  void Copy(const client::SliceInfo& slice, std::span<const std::byte> data);
  // True when the slice is now read in place. REQUIRES: permission to write to the block.
  bool Lend(const client::SliceInfo& slice, std::span<const std::byte> data,
            const std::shared_ptr<const client::LentHold>& hold);
  // True when the slice waits for its turn on the device. REQUIRES: permission to write to the
  // block, which the slice has from now on.
  bool Queue(const client::SliceInfo& slice, std::span<const std::byte> data,
             std::shared_ptr<const client::LentHold> hold);
  // Loads slices of one codec out of the device's memory: those with these numbers in `slices`.
  void LoadFromDevice(format::Codec codec, std::span<const size_t> numbers,
                      std::span<const client::DeviceSlice> slices,
                      std::vector<client::DeviceRead>* reads);
  // Whether a slice of the block waits: its own page is to be written.
  bool Waits(uint32_t block) const;
  // Whether the device can decode the slice into the sequence's own page.
  bool LoadsOnDevice(const client::SliceInfo& slice) const;
  SliceLoader::Slice TaskOf(const client::SliceInfo& slice);
  // Loads slices of one codec, and counts that.
  std::vector<SliceLoader::Outcome> Load(format::Codec codec,
                                         std::span<const SliceLoader::Slice> tasks);
  void Arrived(const client::SliceInfo& slice, size_t bytes, bool lent);
  Status WrongSlice(const client::SliceInfo& slice, size_t bytes) const;

  const KvLayout& kv_;
  const KvCodec& codec_;
  KvCodec::Scratch scratch_;
  KvSequence& sequence_;
  FetchProgress& progress_;
  const Options options_;
  bool as_pushed_ = true;
  // Slices that wait to be decoded on the device, of one layer and codec. Their blocks are being
  // written.
  struct Waiting {
    client::SliceInfo slice = {};
    std::span<const std::byte> data = {};
    std::vector<std::byte> own = {};  // `data`, unless it is lent.
    std::shared_ptr<const client::LentHold> hold = {};
  };
  std::vector<Waiting> waiting_;
  uint64_t waiting_bytes_ = 0;
  TimePoint waiting_since_{};
  // Block and layer of destinations that the client may be writing to; few at a time.
  std::vector<std::pair<uint32_t, uint32_t>> open_;
  // The loan of the last lent slice: slices of one part share it.
  std::shared_ptr<const client::LentHold> last_hold_;
  std::shared_ptr<const PageLoan> last_loan_;
};

}  // namespace cairn::worker
