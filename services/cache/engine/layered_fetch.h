#pragma once
// A fetch: slices of leased blocks, layer by layer, verified.
//
// Blocks are taken in windows of consecutive ones, each window layer by layer. All blocks that lie
// in host make one window however many they are. Where blocks must come from disk, a window is as
// many as an eighth of the transfer budget holds, and while one is sent the next is on its way:
// promoted to host if there is room, else read into a buffer. Blocks that a source located go the
// same way, after those that the lease pins. Waiting for a buffer never happens
// with one in hand, so fetches cannot block each other for ever.

#include <algorithm>
#include <utility>

#include "services/cache/engine/cache_engine.h"
#include "services/cache/engine/fetch_slot.h"

namespace cairn::cache {

// Not thread-safe: belongs to one reader.
class LayeredFetch final : public FetchStream {
 public:
  using Range = std::pair<uint32_t, uint32_t>;  // [first, second)

  static Result<std::unique_ptr<FetchStream>> Start(const FetchServices& services,
                                                    const LeasePtr& lease, Range blocks,
                                                    Range layers, bool reader_verifies,
                                                    std::string trace);
  Result<std::optional<Item>> Next(TimePoint deadline) override;
  bool lease_ended() const override {
    return lease_->ended.load(std::memory_order_acquire) != MissReason::kNone;
  }
  bool holds_up_others() const override {
    return services_.budget->short_of_room() && (current_.HoldsBuffers() || ahead_.HoldsBuffers());
  }

 private:
  struct Window {
    std::vector<FetchSlot> slots;
    bool settled = false;

    bool HoldsBuffers() const {
      return std::any_of(slots.begin(), slots.end(), [](const FetchSlot& slot) {
        return slot.read != nullptr || slot.arriving != nullptr ||
               (!slot.parts.empty() && slot.parts.front().hold != nullptr);
      });
    }
  };

  LayeredFetch(const FetchServices& services, LeasePtr lease, Range layers, bool reader_verifies,
               std::string trace)
      : services_(services),
        lease_(std::move(lease)),
        layers_(layers),
        reader_verifies_(reader_verifies),
        trace_(std::move(trace)) {}

  // The window that begins at `next_block_`, not yet settled; empty at the end.
  Window NextWindow();
  bool Advance(Window& window);
  // Makes the current window one with something to send. False: not yet. At the end the window is
  // empty.
  bool PrepareWindow();
  // The next item of the current window; nullopt when it is sent.
  // `waiting`: a block must be read again first.
  std::optional<Item> Emit(bool* waiting);
  std::optional<Item> EmitSlice(FetchSlot& slot);
  // The lease is over: a failure for every block that was not sent whole.
  std::optional<Item> EmitEnded(MissReason reason);
  // Counts the block as a miss, though it was matched.
  FetchFailure Fail(uint32_t block, MissReason reason);
  TierKind MatchedTier(uint32_t block) const;

  const FetchServices services_;
  const LeasePtr lease_;
  const Range layers_;
  const bool reader_verifies_;
  const std::string trace_;
  std::shared_ptr<PathPins> pins_;
  std::vector<BlockKey> keys_;  // Of blocks [first_block_, first_block_ + size).
  uint32_t first_block_ = 0;
  uint32_t next_block_ = 0;  // Of the next window.
  Window current_;
  Window ahead_;
  bool source_late_ = false;
  // Where emission stands in the current window.
  uint32_t layer_ = 0;
  size_t slot_ = 0;
  size_t part_ = 0;
  uint64_t emitted_ = 0;
};

}  // namespace cairn::cache
