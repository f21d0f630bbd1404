#pragma once
// The members that take a block from this node, and those that have just taken it.
//
// When many members want the same blocks, only two at a time get one from here, and when two have
// taken it lately, the next ones are first told to ask these. So the copies grow like a tree
// instead of all going over the link of the first holder.

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "cairn/common/hash.h"
#include "common/concurrency/mutex.h"
#include "services/cache/cluster/directory/waymarks.h"
#include "services/cache/cluster/peer/peer_links.h"

namespace cairn::cache {

// A caller names any id that it likes. So the table keeps the hash of an id, and whoever answers a
// call gives names to those that are members. Thread-safe.
class TakerTable {
 public:
  static constexpr size_t kAtOnce = 2;  // Members that take a block at the same time.
  static constexpr size_t kNamed = PeerReadAnswer::kMostOthers;
  using Taker = uint64_t;
  static Taker TakerOf(const std::string& id) { return Xxh3(std::as_bytes(std::span(id))); }

  // A member wants the block. True: it may take it, and End follows. False: `named` gets the
  // members that take it or took it last, newest first, at most kNamed. A member that was sent to
  // others gets the block when it asks again.
  bool Begin(WaymarkHash block, Taker member, std::vector<Taker>* named) {
    MutexLock lock(mu_);
    Taking& taking = taking_[block];
    if (taking.members.size() < kAtOnce && !SendElsewhere(block, member)) {
      taking.members.push_back(member);
      return true;
    }
    const auto name = [&](const auto& members) {
      for (auto it = members.rbegin(); it != members.rend() && named->size() < kNamed; ++it) {
        if (*it != member) named->push_back(*it);
      }
    };
    for (const auto* const map : {&recent_, &old_}) {
      if (const auto it = map->find(block); it != map->end()) name(it->second.took);
    }
    name(taking.members);
    if (taking.members.empty()) {
      taking_.erase(block);
    } else {
      taking.turned_away = true;
    }
    return false;
  }
  uint64_t bytes() const {
    MutexLock lock(mu_);
    const uint64_t blocks = recent_.capacity() + old_.capacity();
    return taking_.capacity() * (sizeof(WaymarkHash) + sizeof(Taking) + 1) +
           blocks * (sizeof(WaymarkHash) + sizeof(Past) + 1);
  }
  // Somebody else wanted the block since those that take it now began.
  bool TurnedAway(WaymarkHash block) const {
    MutexLock lock(mu_);
    const auto it = taking_.find(block);
    return it != taking_.end() && it->second.turned_away;
  }
  // `taken`: all of it was sent.
  void End(WaymarkHash block, Taker member, bool taken) {
    MutexLock lock(mu_);
    const auto it = taking_.find(block);
    if (it == taking_.end()) return;
    auto& taking = it->second.members;
    if (const auto at = std::find(taking.begin(), taking.end(), member); at != taking.end()) {
      taking.erase(at);
    }
    it->second.turned_away = false;  // There is a place for whoever it was.
    if (taking.empty()) taking_.erase(it);
    if (!taken) return;
    if (recent_.size() >= kRemembered && !recent_.contains(block)) {
      old_ = std::exchange(recent_, {});
    }
    auto& last = recent_[block].took;
    last.erase(std::remove(last.begin(), last.end(), member), last.end());
    last.push_back(member);
    if (last.size() > kNamed) last.erase(last.begin());
  }

 private:
  static constexpr size_t kRemembered = 16384;  // Blocks, in each of the two maps.
  static constexpr size_t kSent = 8;            // Members of a block that were sent elsewhere.
  // With room for the most that there may be and one more, so that all of it counts.
  struct Taking {
    absl::InlinedVector<Taker, kAtOnce> members;
    bool turned_away = false;
  };
  struct Past {
    absl::InlinedVector<Taker, kNamed + 1> took;
    absl::InlinedVector<Taker, kSent + 1> sent;  // Elsewhere.
  };

  // Enough others took the block lately, and the member was not told so yet.
  bool SendElsewhere(WaymarkHash block, Taker member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto it = recent_.find(block);
    if (it == recent_.end()) return false;
    Past& past = it->second;
    const auto others = std::count_if(past.took.begin(), past.took.end(),
                                      [&](Taker other) { return other != member; });
    if (static_cast<size_t>(others) < kAtOnce) return false;
    if (std::find(past.sent.begin(), past.sent.end(), member) != past.sent.end()) return false;
    past.sent.push_back(member);
    if (past.sent.size() > kSent) past.sent.erase(past.sent.begin());
    return true;
  }

  mutable Mutex mu_;
  absl::flat_hash_map<WaymarkHash, Taking> taking_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<WaymarkHash, Past> recent_ ABSL_GUARDED_BY(mu_), old_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
