#pragma once
// Puts the slices that a fetch brings into the pages of a sequence.

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cairn/client/cache_client.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/session/fetch_progress.h"
#include "services/worker/session/kv_codec.h"

namespace cairn::worker {

// For one call of CacheClient::Fetch. Slices of all heads go directly to their place in the page,
// and others through the client's buffer. Bytes in the node's memory are not copied: a block whose
// part covers all layers and heads has the order of a page, so the sequence reads it there. Slices
// of blocks that the engine has claimed, and slices that have already come, are dropped. A slice in
// a codec other than raw is decoded into its page, from wherever it lies. Its part must then have
// all heads. With a ladder, the slices of one fetch may have any of its codecs. References must
// outlive it. Not thread-safe: the thread that calls Fetch uses it.
class PageSink final : public client::FetchSink {
 public:
  struct Options {
    bool lend = true;  // Read the node's memory in place if possible.
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

  // False when a slice was decoded from a later rung of a ladder than the one that is pushed: its
  // numbers are others, under the same key.
  bool as_pushed() const { return as_pushed_; }

 private:
  bool Fits(const client::SliceInfo& slice) const;
  bool AllHeads(const client::SliceInfo& slice) const;
  uint64_t FirstPosition(const client::SliceInfo& slice) const;  // Of its block.
  void CopyHeads(const client::SliceInfo& slice, std::span<const std::byte> data,
                 std::span<std::byte> page) const;
  // Copies into the sequence's own page. REQUIRES: permission to write to the block.
  void Copy(const client::SliceInfo& slice, std::span<const std::byte> data);
  // True when the slice is now read in place. REQUIRES: permission to write to the block.
  bool Lend(const client::SliceInfo& slice, std::span<const std::byte> data,
            const std::shared_ptr<const client::LentHold>& hold);
  void Arrived(const client::SliceInfo& slice, size_t bytes, bool lent);
  Status WrongSlice(const client::SliceInfo& slice, size_t bytes) const;

  const KvLayout& kv_;
  const KvCodec& codec_;
  KvCodec::Scratch scratch_;
  KvSequence& sequence_;
  FetchProgress& progress_;
  const Options options_;
  bool as_pushed_ = true;
  // Block and layer of destinations that the client may be writing to; few at a time.
  std::vector<std::pair<uint32_t, uint32_t>> open_;
  // The loan of the last lent slice: slices of one part share it.
  std::shared_ptr<const client::LentHold> last_hold_;
  std::shared_ptr<const PageLoan> last_loan_;
};

}  // namespace cairn::worker
