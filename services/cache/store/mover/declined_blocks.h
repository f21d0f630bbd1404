#pragma once
// The blocks that were not admitted to a slower tier: they stay where they are, may be evicted, and
// are looked at again, some at a time, because they may have been used meanwhile.
//
// Thread-compatible. Blocks that are looked at stay here until the caller takes them, so that a
// flush, which wants all of them, finds all.

#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "services/cache/store/state/namespace_state.h"

namespace cairn::cache {

struct DeclinedBlock {
  NamespacePtr ns;
  BlockKey key;
  uint64_t bytes = 0;
  uint64_t room = 0;     // That it takes, holes included.
  uint16_t uses = 0;     // When it was declined.
  bool crowded = false;  // Because too many others were waiting.
};

class DeclinedBlocks {
 public:
  static constexpr size_t kMax = 65536;  // The oldest are forgotten.
  using Number = uint64_t;

  void Add(DeclinedBlock block) {
    if (blocks_.size() >= kMax) blocks_.erase(blocks_.begin());
    blocks_.emplace(next_++, std::move(block));
  }
  // The next ones, at most `max`, from the oldest to the youngest and then again.
  std::vector<std::pair<Number, DeclinedBlock>> Some(size_t max) {
    std::vector<std::pair<Number, DeclinedBlock>> some;
    auto it = blocks_.lower_bound(from_);
    for (; it != blocks_.end() && some.size() < max; ++it) some.emplace_back(*it);
    from_ = it == blocks_.end() ? 0 : it->first;
    return some;
  }
  // nullopt: it was taken or forgotten before.
  std::optional<DeclinedBlock> Take(Number number) {
    const auto it = blocks_.find(number);
    if (it == blocks_.end()) return std::nullopt;
    std::optional<DeclinedBlock> block = std::move(it->second);
    blocks_.erase(it);
    return block;
  }
  std::vector<DeclinedBlock> TakeAll() {
    std::vector<DeclinedBlock> all;
    all.reserve(blocks_.size());
    for (auto& [number, block] : blocks_) all.push_back(std::move(block));
    blocks_.clear();
    return all;
  }
  size_t size() const { return blocks_.size(); }

 private:
  absl::btree_map<Number, DeclinedBlock> blocks_;  // The oldest first.
  Number next_ = 1;
  Number from_ = 0;  // Where Some goes on.
};

}  // namespace cairn::cache
