#include "common/membership/member_table.h"

#include <algorithm>
#include <utility>

namespace cairn::membership {

void MemberTable::Put(const std::string& key, Member member) {
  members_[key] = std::move(member);
  leaving_.erase(key);
}

void MemberTable::Delete(const std::string& key) {
  members_.erase(key);
  leaving_.erase(key);
}

void MemberTable::Replace(std::map<std::string, Member> records, TimePoint now) {
  for (const auto& [key, member] : members_) {
    // One that is missing for longer keeps the end of its grace.
    if (!records.contains(key)) leaving_.emplace(key, now + grace_);
  }
  for (auto& [key, member] : records) Put(key, std::move(member));
}

void MemberTable::Add(const std::map<std::string, Member>& records) {
  for (const auto& [key, member] : records) members_.emplace(key, member);
}

TimePoint MemberTable::Expire(TimePoint now) {
  TimePoint next = TimePoint::max();
  for (auto it = leaving_.begin(); it != leaving_.end();) {
    if (it->second <= now) {
      members_.erase(it->first);
      it = leaving_.erase(it);
    } else {
      next = std::min(next, it->second);
      ++it;
    }
  }
  return next;
}

View MemberTable::view() const {
  std::vector<Member> members;
  members.reserve(members_.size());
  for (const auto& [key, member] : members_) members.push_back(member);
  return MakeView(std::move(members));
}

}  // namespace cairn::membership
