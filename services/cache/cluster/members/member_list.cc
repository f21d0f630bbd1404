#include "services/cache/cluster/members/member_list.h"

#include <algorithm>
#include <utility>

namespace cairn::cache {
namespace {

std::pair<uint64_t, uint64_t> Age(const PeerHello& hello) {
  return {hello.epoch, hello.caller.incarnation};
}

// For those who look at members, not at what these see.
bool SaysTheSame(const PeerHello& a, const PeerHello& b) {
  return a.caller == b.caller && a.epoch == b.epoch && a.newest_version == b.newest_version &&
         a.host == b.host && a.zone == b.zone && a.bumps_digest == b.bumps_digest &&
         a.leaving == b.leaving;
}

}  // namespace

void MemberList::SetView(const membership::View& view) {
  MutexLock lock(mu_);
  std::map<std::string, Place> places;
  for (const membership::Member& member : view) {
    const auto known = places_.find(member.address);
    places[member.address] = known == places_.end() ? Place() : std::move(known->second);
  }
  places_ = std::move(places);
  ++version_;
  FindReplacement();
}

std::vector<std::string> MemberList::TakeDue(TimePoint now) {
  MutexLock lock(mu_);
  std::vector<std::string> due;
  for (auto& [address, place] : places_) {
    if (place.greeting || now < place.next) continue;
    place.greeting = true;
    due.push_back(address);
  }
  return due;
}

void MemberList::GreetAllSoon(TimePoint now) {
  MutexLock lock(mu_);
  for (auto& [address, place] : places_) {
    if (place.hello) place.next = std::min(place.next, now + std::chrono::seconds(1));
  }
}

Status MemberList::Check(const PeerHello& hello) const {
  if (hello.caller.cluster != self_.caller.cluster) {
    return Errorf(StatusCode::kFailedPrecondition, "cluster.name: it is in '{}', expected '{}'",
                  hello.caller.cluster, self_.caller.cluster);
  }
  if (std::max(hello.oldest_version, self_.oldest_version) >
      std::min(hello.newest_version, self_.newest_version)) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "it speaks versions {} to {} of the peers' protocol, this node {} to {}",
                  hello.oldest_version, hello.newest_version, self_.oldest_version,
                  self_.newest_version);
  }
  return OkStatus();
}

Status MemberList::Take(Place& place, const PeerHello& hello, TimePoint now) {
  place.greeting = false;
  place.asked = true;
  place.next = now + options_.hello_every;
  place.retry = Duration(0);
  place.last = Check(hello);
  if (!place.last.ok()) {
    if (std::exchange(place.hello, std::nullopt)) ++version_;
    FindReplacement();
    return place.last;
  }
  if (!Lives(place, now) || !SaysTheSame(*place.hello, hello)) ++version_;
  place.heard = now;
  next_absence_ = std::min(next_absence_, now + options_.absent_after);
  const bool replaced = Replaces(place.hello);
  place.hello = hello;
  if (replaced || Replaces(hello)) FindReplacement();
  return OkStatus();
}

bool MemberList::Replaces(const std::optional<PeerHello>& hello) const {
  return hello && hello->caller.id == self_.caller.id &&
         hello->caller.incarnation != self_.caller.incarnation && Age(*hello) > Age(self_);
}

void MemberList::FindReplacement() {
  std::optional<PeerHello> newest;
  for (const auto& [address, place] : places_) {
    if (!Replaces(place.hello)) continue;
    if (!newest || Age(*place.hello) > Age(*newest)) newest = place.hello;
  }
  if (newest.has_value() != replaced_by_.has_value()) ++version_;
  replaced_by_ = std::move(newest);
}

Status MemberList::Heard(const std::string& address, const PeerHello& hello, TimePoint now) {
  MutexLock lock(mu_);
  const auto it = places_.find(address);
  if (it == places_.end()) return OkStatus();  // It left the view meanwhile.
  return Take(it->second, hello, now);
}

bool MemberList::Failed(const std::string& address, const Status& why, TimePoint now) {
  MutexLock lock(mu_);
  const auto it = places_.find(address);
  if (it == places_.end()) return false;
  Place& place = it->second;
  const bool news = Message(place.last) != Message(why);
  place.greeting = false;
  place.asked = true;
  place.last = why;
  place.retry = place.retry == Duration(0) ? options_.first_retry
                                           : std::min(place.retry * 2, options_.hello_every);
  place.next = now + place.retry;
  return news;
}

Status MemberList::Greeted(const PeerHello& hello, TimePoint now) {
  CAIRN_RETURN_IF_ERROR(Check(hello));
  MutexLock lock(mu_);
  const auto it = places_.find(hello.address);
  if (it == places_.end()) return OkStatus();
  Place& place = it->second;
  if (hello.caller.incarnation == self_.caller.incarnation) return OkStatus();
  const bool own_id = hello.caller.id == self_.caller.id;
  if (own_id || !place.hello || place.hello->caller != hello.caller) {
    place.next = std::min(place.next, now);
    return OkStatus();
  }
  const bool greeting = place.greeting;
  // Whoever greets is greeted all the same: only that tells what it has of the announcements.
  const TimePoint next = Lives(place, now) ? place.next : now;
  const Status taken = Take(place, hello, now);
  place.greeting = greeting;
  if (taken.ok()) place.next = next;
  return taken;
}

bool MemberList::Lives(const Place& place, TimePoint now) const {
  return place.hello && !place.hello->leaving && now < place.heard + options_.absent_after &&
         place.hello->caller.id != self_.caller.id;
}

std::vector<LiveMember> MemberList::live(TimePoint now) const {
  MutexLock lock(mu_);
  std::map<std::string, LiveMember> members;
  for (const auto& [address, place] : places_) {
    if (!Lives(place, now)) continue;
    LiveMember member{*place.hello, address, place.heard};
    const auto [it, added] = members.try_emplace(place.hello->caller.id, member);
    if (added || member.hello.caller == it->second.hello.caller) continue;
    if (Age(member.hello) > Age(it->second.hello)) {
      std::swap(member, it->second);
      it->second.older_incarnations = std::move(member.older_incarnations);
    }
    it->second.older_incarnations.push_back(member.hello.caller.incarnation);
  }
  std::vector<LiveMember> list;
  for (auto& [id, member] : members) list.push_back(std::move(member));
  return list;
}

uint64_t MemberList::version(TimePoint now) {
  MutexLock lock(mu_);
  if (now < next_absence_) return version_;
  next_absence_ = TimePoint::max();
  for (auto& [address, place] : places_) {
    const TimePoint absent = place.heard + options_.absent_after;
    const bool replaces = Replaces(place.hello);
    if (Lives(place, now) || (replaces && now < absent)) {
      next_absence_ = std::min(next_absence_, absent);
    } else if (replaces) {
      place.hello.reset();
    }
  }
  FindReplacement();
  return ++version_;
}

std::vector<AbsentMember> MemberList::absent(TimePoint now) const {
  MutexLock lock(mu_);
  std::vector<AbsentMember> list;
  for (const auto& [address, place] : places_) {
    if (Lives(place, now)) continue;
    if (place.hello && place.hello->caller.incarnation == self_.caller.incarnation) continue;
    Status why = place.last;
    if (why.ok() && place.hello && place.hello->leaving) {
      why = Errorf(StatusCode::kUnavailable, "it is leaving");
    }
    if (why.ok()) why = Errorf(StatusCode::kFailedPrecondition, "it has the id of this node");
    list.push_back({address, std::move(why)});
  }
  return list;
}

std::optional<PeerHello> MemberList::replaced_by() const {
  MutexLock lock(mu_);
  return replaced_by_;
}

bool MemberList::asked_all() const {
  MutexLock lock(mu_);
  return !places_.empty() && std::all_of(places_.begin(), places_.end(),
                                         [](const auto& entry) { return entry.second.asked; });
}

}  // namespace cairn::cache
