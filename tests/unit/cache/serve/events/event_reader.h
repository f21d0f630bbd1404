#pragma once
// A reader of the node's stream, as a router is one: what the batches say is what it knows.

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include "common/status/matchers.h"
#include "services/router/events/batch_decoder.h"

namespace cairn::cache {

// Not thread-safe.
class EventReader {
 public:
  // Topic, the last 64 bits of the hash, tier, group.
  using Block = std::tuple<std::string, uint64_t, TierKind, uint32_t>;

  // Batches come with numbers that follow each other.
  void Take(uint64_t number, const std::string& topic, std::string_view bytes) {
    EXPECT_EQ(number, next_);
    next_ = number + 1;
    const auto batch = router::DecodeBatch(bytes);
    ASSERT_OK(batch);
    for (const router::EngineEvent& event : batch->events) {
      if (const auto* stored = std::get_if<router::EngineBlocksStored>(&event)) {
        EXPECT_TRUE(stored->medium->remote);
        for (const auto& hash : stored->hashes) {
          // Routers that count how often a block was stored need as many removals.
          EXPECT_TRUE(
              known_.insert({topic, hash.low, stored->medium->tier, stored->group.index}).second)
              << "told twice";
        }
      } else if (const auto* removed = std::get_if<router::EngineBlocksRemoved>(&event)) {
        for (const auto& hash : removed->hashes) {
          known_.erase({topic, hash.low, removed->medium->tier, removed->group.index});
        }
      } else {
        ++cleared_;
        std::erase_if(known_, [&](const Block& block) { return std::get<0>(block) == topic; });
      }
    }
  }
  // The next batch may have any number.
  void Expect(uint64_t next) { next_ = next; }

  const std::set<Block>& known() const { return known_; }
  int cleared() const { return cleared_; }
  uint64_t next() const { return next_; }

 private:
  std::set<Block> known_;
  int cleared_ = 0;
  uint64_t next_ = 0;
};

}  // namespace cairn::cache
