#pragma once
// The members of a key-value store that is sometimes away, forgets, or starts with an empty disk.

#include <map>
#include <set>
#include <string>

#include "cairn/common/clock.h"
#include "common/membership/discovery.h"

namespace cairn::membership {

// The state of the records, by key. A member leaves at once when it says so itself. When its
// record is gone, it has `grace` to come back: etcd drops the records of a process that works if
// the renewal of its lease met members of etcd that hung, and a store whose disk was lost gets its
// records again when their owners renew their leases. One thread at a time.
class MemberTable {
 public:
  explicit MemberTable(Duration grace) : grace_(grace) {}

  void Put(const std::string& key, Member member);
  // It says itself that it leaves.
  void Leave(const std::string& key);
  // Its record was deleted: by hand, or because its lease ended.
  void Miss(const std::string& key, TimePoint now);
  // A full reading. Those that it lacks are missed.
  void Replace(std::map<std::string, Member> records, TimePoint now);
  // A reading that may be older than what is known: it only adds.
  void Add(const std::map<std::string, Member>& records);
  // After a time without the store, in which nobody could come back: each grace begins again.
  void BeginAgain(TimePoint now);
  // Removes those whose grace has ended. Returns when the next one's ends; TimePoint::max(): nobody
  // is waited for.
  TimePoint Expire(TimePoint now);

  View view() const;

 private:
  const Duration grace_;
  std::map<std::string, Member> members_;
  std::map<std::string, TimePoint> leaving_;  // By key: when the grace ends.
};

}  // namespace cairn::membership
