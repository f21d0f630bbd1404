#pragma once
// Bounds the memory that copies to a slower tier take in addition to their blocks: buffers of parts
// that are copied, or encoded again. It is charged to MemoryItem::kDisk. Thread-safe.
//
// A copy for which there is no room asks again later, and no copy that came later overtakes it. One
// that needs more than all of the room passes when no other is under way.

#include <optional>
#include <utility>

#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class CopyMemory {
 public:
  using Block = std::pair<const NamespaceState*, BlockKey>;
  static constexpr Duration kTurn = std::chrono::seconds(1);  // A copy is waited for so long.

  explicit CopyMemory(NodeContext* context) : context_(*context) {}

  // False: others have it.
  bool Take(const Block& block, uint64_t bytes, MemoryCharge* charge) {
    if (bytes == 0) return true;
    const TimePoint now = context_.clock->Now();
    MutexLock lock(mu_);
    const bool others_turn = turn_ && turn_->block != block && now < turn_->ends;
    if (!others_turn && (bytes_ == 0 || bytes_ + bytes <= context_.options.max_copy_bytes)) {
      turn_.reset();
      bytes_ += bytes;
      *charge = context_.memory.Take(MemoryItem::kDisk, bytes);
      return true;
    }
    if (!others_turn) turn_ = Turn{block, now + kTurn};
    return false;
  }

  // The buffers are gone already.
  void GiveBack(MemoryCharge* charge) {
    MutexLock lock(mu_);
    bytes_ -= charge->bytes();
    *charge = {};
  }

 private:
  // The copy that gets memory next. It asks again before the turn ends, unless it is over.
  struct Turn {
    Block block;
    TimePoint ends{};
  };

  NodeContext& context_;
  Mutex mu_;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<Turn> turn_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
