#pragma once
// Who takes a block from this node, and who has just taken it.
//
// When many members want the same blocks at once, only two at a time get one from here. The others
// are told who has it already, or soon will, so that the copies grow like a tree instead of all
// going over the link of the first holder.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "common/concurrency/mutex.h"
#include "services/cache/directory/waymarks.h"

namespace cairn::cache {

// Thread-safe.
class TakerTable {
 public:
  static constexpr size_t kAtOnce = 2;  // Members that take a block at the same time.
  static constexpr size_t kNamed = 4;

  // A member wants the block. True: it may take it, and End follows. False: `named` gets the
  // members that take it or took it last, newest first, at most kNamed.
  bool Begin(WaymarkHash block, const std::string& member, std::vector<std::string>* named) {
    MutexLock lock(mu_);
    Members& taking = taking_[block];
    if (taking.size() < kAtOnce) {
      taking.push_back(member);
      return true;
    }
    const auto name = [&](const Members& members) {
      for (auto it = members.rbegin(); it != members.rend() && named->size() < kNamed; ++it) {
        if (*it != member) named->push_back(*it);
      }
    };
    for (const auto* const map : {&recent_, &old_}) {
      if (const auto it = map->find(block); it != map->end()) name(it->second);
    }
    name(taking);
    return false;
  }
  // `taken`: all of it was sent.
  void End(WaymarkHash block, const std::string& member, bool taken) {
    MutexLock lock(mu_);
    const auto it = taking_.find(block);
    if (it == taking_.end()) return;
    Members& taking = it->second;
    if (const auto at = std::find(taking.begin(), taking.end(), member); at != taking.end()) {
      taking.erase(at);
    }
    if (taking.empty()) taking_.erase(it);
    if (!taken) return;
    if (recent_.size() >= kRemembered && !recent_.contains(block)) {
      old_ = std::exchange(recent_, {});
    }
    Members& last = recent_[block];
    last.erase(std::remove(last.begin(), last.end(), member), last.end());
    last.push_back(member);
    if (last.size() > kNamed) last.erase(last.begin());
  }

 private:
  static constexpr size_t kRemembered = 16384;  // Blocks, in each of the two maps.
  using Members = absl::InlinedVector<std::string, 2>;
  using Map = absl::flat_hash_map<WaymarkHash, Members>;

  Mutex mu_;
  Map taking_ ABSL_GUARDED_BY(mu_);
  Map recent_ ABSL_GUARDED_BY(mu_), old_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
