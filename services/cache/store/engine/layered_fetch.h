#pragma once
// A fetch: slices of leased blocks, layer by layer, verified.
//
// Blocks are taken in windows of consecutive ones, each window layer by layer. Blocks that lie in
// host make one window, as long as what is kept of them fits in an eighth of limits.fetch_headers
// (some ten thousand blocks; window_room.h). Where blocks must come from disk, a window is as many
// as an eighth of the transfer budget holds, and while one is sent the next is on its way: promoted
// to host if there is room, else read into a buffer. Blocks that a source located go the same way,
// after those that the lease pins, in windows of a MiB. Waiting for a buffer, or for memory, never
// happens with one in hand, so fetches cannot block each other forever.
//
// A fetch of some blocks (Wanted::only) goes through them as if they were neighbours.
//
// A call of Next whose deadline has passed looks up a thousand blocks at most, and reads no headers
// of a block that has more than 1 MiB of them: such windows are not made on a polling thread.

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "services/cache/store/engine/cache_engine.h"
#include "services/cache/store/engine/fetch_slot.h"

namespace cairn::cache {

// Not thread-safe: belongs to one reader.
class LayeredFetch final : public FetchStream {
 public:
  ~LayeredFetch() override;
  using Range = std::pair<uint32_t, uint32_t>;  // [first, second)

  // Which slices are compared with their hashes here. Those that were read from where bytes are not
  // mapped always are, since only this removes a bad copy.
  enum class Checks : uint8_t {
    kAll,
    kSample,  // The reader verifies.
    // Each one once for the lease. Bytes that writers can change are copied, and the copy is
    // verified and given out.
    kOncePerLease,
  };
  struct Wanted {
    Range blocks = {};
    // Instead of `blocks`: these, ascending. Not empty then.
    std::vector<uint32_t> only = {};
    Range layers = {};
    Checks checks = Checks::kAll;
    // If not null: rows of the one layer. Slices may then come as pieces that have them. It must
    // outlive the fetch.
    const WantedRows* rows = nullptr;
    std::string trace = {};
  };
  static Result<std::unique_ptr<LayeredFetch>> Start(const FetchServices& services,
                                                     const LeasePtr& lease, Wanted wanted);
  Result<std::optional<Item>> Next(TimePoint deadline) override;
  const NamespaceState& ns() const { return *lease_->ns; }
  bool lease_ended() const override {
    return lease_->ended.load(std::memory_order_acquire) != MissReason::kNone;
  }
  // Bytes that were hashed with kOncePerLease so far.
  uint64_t checked_bytes() const { return checked_bytes_; }
  bool holds_up_others() const override {
    return services_.budget->short_of_room() && (current_.HoldsBuffers() || ahead_.HoldsBuffers());
  }

 private:
  struct Window {
    std::vector<FetchSlot> slots;
    std::optional<WindowRoom> room;
    std::shared_ptr<std::atomic<uint32_t>> reads = nullptr;  // As in FetchSlot.
    bool whole = false;                                      // No block is added any more.
    bool settled = false;
    size_t failures_told = 0;

    bool HoldsBuffers() const {
      return std::any_of(slots.begin(), slots.end(), [](const FetchSlot& slot) {
        return slot.read != nullptr || slot.arriving != nullptr ||
               (!slot.parts.empty() && slot.parts.front().buffer != nullptr);
      });
    }
  };
  enum class Step : uint8_t { kReady, kMore, kWaiting };

  LayeredFetch(const FetchServices& services, LeasePtr lease, Wanted wanted)
      : services_(services),
        token_(&services.context->in_flight),
        lease_(std::move(lease)),
        layers_(wanted.layers),
        checks_(wanted.checks),
        rows_(wanted.rows),
        trace_(std::move(wanted.trace)),
        only_(std::move(wanted.only)) {}

  // Appends new slots for the blocks from `next_block_` on.
  std::span<FetchSlot> AddSlots(Window& window, uint32_t count);
  // Adds some of the blocks from `next_block_` on; the window is whole at the end of the fetch.
  // kWaiting: there is no memory for its first block.
  Step Grow(Window& window, TimePoint deadline);
  // The same for blocks that do not lie in memory.
  Step GrowElsewhere(Window& window, bool hurry);
  bool Advance(Window& window);
  // One step towards a current window with something to send, which is then kReady. At the end the
  // window is empty.
  Step PrepareWindow(TimePoint deadline);
  // The room of the window goes back, also to fetches that wait for memory.
  void EndWindow(Window& window);
  // The next item of the current window; nullopt when it is sent.
  // `waiting`: a block must be read again first.
  std::optional<Item> Emit(bool* waiting);
  std::optional<Item> EmitSlice(FetchSlot& slot, const FetchSlot::Part& part);
  // Writers can change the part's bytes at any time.
  bool MayChange(const FetchSlot& slot, const FetchSlot::Part& part) const;
  // Compares a slice with its hash where `checks_` says so. `data` and `hold` may become those of a
  // copy.
  bool Check(const FetchSlot& slot, const FetchSlot::Part& part, const format::SliceEntry& entry,
             bool sample, std::span<const std::byte>* data, std::shared_ptr<const void>* hold);
  // The block's number in the lease. `place`: among the blocks of the fetch, from first_block_ on.
  uint32_t BlockAt(uint32_t place) const {
    return only_.empty() ? place : only_[place - first_block_];
  }
  // The lease is over: a failure for every block that was not sent whole.
  std::optional<Item> EmitEnded(MissReason reason);
  // Counts the block as a miss, though it was matched.
  FetchFailure Fail(uint32_t block, MissReason reason);
  TierKind MatchedTier(uint32_t block) const;

  const FetchServices services_;
  // First made, last gone: until then the engine, and its account, are there.
  const InFlight::Token token_;
  const LeasePtr lease_;
  const Range layers_;
  const Checks checks_;
  const WantedRows* const rows_;
  const std::string trace_;
  MemoryCharge memory_;  // The charge of the keys, and of the least that a window needs.
  // Blocks are counted by their places: those of the lease, or those of only_ from first_block_ on.
  const std::vector<uint32_t> only_;
  std::vector<BlockKey> keys_;  // The keys of places [first_block_, first_block_ + size).
  uint32_t first_block_ = 0;
  uint32_t next_block_ = 0;  // Place of the next window's first.
  Window current_;
  Window ahead_;
  bool source_late_ = false;
  // Where emission stands in the current window.
  uint32_t layer_ = 0;
  size_t slot_ = 0;
  size_t part_ = 0;  // Among the parts of the slot that have the layer.
  uint64_t emitted_ = 0;
  uint64_t checked_bytes_ = 0;
  size_t ended_slot_ = 0;  // The slots before it are told, once the lease has ended.
};

}  // namespace cairn::cache
