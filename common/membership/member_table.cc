#include "common/membership/member_table.h"

#include <algorithm>
#include <utility>

namespace cairn::membership {

void MemberTable::Put(const std::string& key, Member member) {
  members_[key] = std::move(member);
  leaving_.erase(key);
}

void MemberTable::Leave(const std::string& key) {
  members_.erase(key);
  leaving_.erase(key);
}

void MemberTable::Miss(const std::string& key, TimePoint now) {
  // One that is missing for longer keeps the end of its grace.
  if (members_.contains(key)) leaving_.emplace(key, now + grace_);
}

void MemberTable::Replace(std::map<std::string, Member> records, TimePoint now) {
  for (const auto& [key, member] : members_) {
    if (!records.contains(key)) Miss(key, now);
  }
  for (auto& record : records) Put(record.first, std::move(record.second));
}

void MemberTable::Add(const std::map<std::string, Member>& records) {
  for (const auto& [key, member] : records) members_.emplace(key, member);
}

void MemberTable::BeginAgain(TimePoint now) {
  for (auto& [key, end] : leaving_) end = now + grace_;
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
