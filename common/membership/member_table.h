#pragma once
// The members of a key-value store that is sometimes away, forgets, or starts with an empty disk.

#include <map>
#include <set>
#include <string>

#include "cairn/common/clock.h"
#include "common/membership/discovery.h"

namespace cairn::membership {

// What is known of the records, by key. A member leaves when the store says that its record was
// deleted (by hand, or because its lease ended), or when its record was missing from a full reading
// and did not come back within `grace`: a store whose disk was lost gets its records again when
// their owners renew their leases. One thread at a time.
class MemberTable {
 public:
  explicit MemberTable(Duration grace) : grace_(grace) {}

  void Put(const std::string& key, Member member);
  void Delete(const std::string& key);
  // A full reading. Members that it lacks have `grace` to come back.
  void Replace(std::map<std::string, Member> records, TimePoint now);
  // A reading that may be older than what is known: it only adds.
  void Add(const std::map<std::string, Member>& records);
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
