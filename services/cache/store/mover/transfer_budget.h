#pragma once
// Bounds the buffers of fetches that read from disk, or from a source, without the host tier. A
// fetch that finds no room waits for the node's progress, as it does for all else, and not in line.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/memory/fair_budget.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

// Thread-safe.
class TransferBudget {
 public:
  // Bytes that go back when it is destroyed. The budget must outlive it.
  class Share {
   public:
    Share(TransferBudget* budget, ByteShare bytes) : budget_(budget), bytes_(std::move(bytes)) {}
    ~Share() {
      bytes_.Clear();
      budget_->short_of_room_ = false;  // Those that wait ask again.
      budget_->progress_.Notify();
    }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

   private:
    TransferBudget* const budget_;
    ByteShare bytes_;
  };

  TransferBudget(uint64_t capacity, Progress* progress)
      : budget_(std::make_shared<FairBudget>(capacity)), progress_(*progress) {}

  // nullptr: others use too much now, or `reader` does. A block that is larger than the whole
  // budget passes when nobody else reads, because otherwise it could never be read. `reader`: the
  // session that the bytes are for, which gets as many as are left for others, or one block. 0:
  // nobody.
  std::shared_ptr<Share> TryTake(uint64_t bytes, uint64_t reader = 0) {
    const std::string party = reader == 0 ? "" : std::to_string(reader);
    ByteShare share(budget_, party);
    const bool taken = share.Resize(std::min(bytes, capacity()));
    // A reader that holds bytes waits for itself.
    if (taken || budget_->used_by(party) == 0) short_of_room_ = !taken;
    return taken ? std::make_shared<Share>(this, std::move(share)) : nullptr;
  }
  // The last read that wanted room did not get it, and none came back since.
  bool short_of_room() const { return short_of_room_; }
  uint64_t capacity() const { return budget_->capacity(); }
  uint64_t used() const { return budget_->used(); }

 private:
  const std::shared_ptr<FairBudget> budget_;
  Progress& progress_;
  std::atomic<bool> short_of_room_{false};
};

}  // namespace cairn::cache
