#include "clients/cpp/src/core/home_chooser.h"

#include <algorithm>
#include <set>

#include "cairn/common/hash.h"
#include "common/net/address.h"

namespace cairn::client {
namespace {

constexpr int kSameHost = 0, kSameZone = 1, kElsewhere = 2;

// Rendezvous hashing (Thaler and Ravishankar, 1998): each key has its own order of all addresses,
// and an address that comes or goes changes the place of no other.
uint64_t OrderOf(const std::string& key, const std::string& address) {
  const std::string text = key + '\n' + address;
  return Xxh3(std::as_bytes(std::span(text)));
}

bool IsOnThisMachine(const std::string& address) {
  const auto parsed = net::ParseListenAddress(address, "address");
  return parsed.ok() && net::IsLocal(*parsed);
}

}  // namespace

void HomeChooser::SetAddresses(const std::vector<std::string>& addresses) {
  const std::set<std::string> named(addresses.begin(), addresses.end());
  std::erase_if(candidates_, [&](const Candidates::value_type& known) {
    return !named.contains(known.first) && (known.first != home_ || known.second.lost);
  });
  for (const std::string& address : named) {
    const auto [it, added] = candidates_.try_emplace(address);
    if (!added) continue;
    it->second.order = OrderOf(options_.key, address);
    it->second.is_local = IsOnThisMachine(address);
    if (it->second.is_local) it->second.distance = kSameHost;
  }
}

HomeChooser::Rank HomeChooser::RankOf(const Candidate& candidate) {
  return {candidate.distance.value_or(kElsewhere), candidate.order};
}

HomeChooser::Rank HomeChooser::HopeOf(const Candidate& candidate) const {
  const int best = !options_.host.empty()   ? kSameHost
                   : !options_.zone.empty() ? kSameZone
                                            : kElsewhere;
  return {candidate.distance.value_or(best), candidate.order};
}

void HomeChooser::Lose(Candidate& candidate, TimePoint now) const {
  candidate.lost = candidate.has_failed = true;
  candidate.open_since.reset();
  candidate.pause = candidate.pause == Duration::zero()
                        ? options_.first_pause
                        : std::min(candidate.pause * 2, options_.max_pause);
  candidate.retry_at = now + candidate.pause;
}

void HomeChooser::Told(const std::string& address, const NodePlace& place) {
  const auto it = candidates_.find(address);
  if (it == candidates_.end() || it->second.is_local) return;
  it->second.distance = !options_.host.empty() && place.host == options_.host   ? kSameHost
                        : !options_.zone.empty() && place.zone == options_.zone ? kSameZone
                                                                                : kElsewhere;
}

void HomeChooser::Saw(const std::string& address, NodeCondition condition, TimePoint now) {
  const auto it = candidates_.find(address);
  if (it == candidates_.end()) return;
  Candidate& candidate = it->second;
  switch (condition) {
    case NodeCondition::kOpening:
      candidate.open_since.reset();
      break;
    case NodeCondition::kOpen:
      candidate.lost = false;
      if (!candidate.open_since) candidate.open_since = now;
      if (now - *candidate.open_since >= options_.steady) candidate.pause = Duration::zero();
      break;
    case NodeCondition::kLost:
      candidate.open_since.reset();
      if (!candidate.lost) Lose(candidate, now);
      break;
  }
}

void HomeChooser::Closed(const std::string& address) {
  const auto it = candidates_.find(address);
  if (it != candidates_.end()) it->second.open_since.reset();
}

void HomeChooser::MoveTo(Candidates::value_type& candidate) {
  if (!home_.empty() && home_ != candidate.first) ++changes_;
  home_ = candidate.first;
  candidate.second.lost = false;  // It gets its chance.
}

bool HomeChooser::MayTakeOver(const Candidate& candidate, const Candidate& home,
                              TimePoint now) const {
  if (!candidate.open_since || RankOf(candidate) >= RankOf(home)) return false;
  const bool nearer = RankOf(candidate).first < RankOf(home).first;
  return (nearer && !candidate.has_failed) || now - *candidate.open_since >= options_.steady;
}

const std::string& HomeChooser::Home(TimePoint now) {
  const auto home = candidates_.find(home_);
  if (home != candidates_.end() && !home->second.lost) return home_;
  if (const auto next = Next({}, now)) {
    MoveTo(*candidates_.find(*next));
  } else if (home == candidates_.end()) {
    if (candidates_.empty()) {
      home_.clear();
    } else {
      MoveTo(*candidates_.begin());
    }
  }
  return home_;
}

void HomeChooser::Improve(TimePoint now) {
  const auto home = candidates_.find(home_);
  if (home == candidates_.end() || home->second.lost) return;
  auto best = home;
  for (auto it = candidates_.begin(); it != candidates_.end(); ++it) {
    if (MayTakeOver(it->second, best->second, now)) best = it;
  }
  if (best != home) MoveTo(*best);
}

std::optional<std::string> HomeChooser::Trial(TimePoint now) {
  const auto home = candidates_.find(home_);
  if (home == candidates_.end()) return std::nullopt;
  const auto wanted = [&](const Candidates::value_type& other) {
    return other.first != home_ &&
           (home->second.lost || HopeOf(other.second) < RankOf(home->second));
  };
  if (const auto trial = candidates_.find(trial_); trial != candidates_.end() && wanted(*trial)) {
    const bool late = !trial->second.open_since && now - trial_began_ >= options_.trial;
    if (!late) return trial_;
    Lose(trial->second, now);
  }
  trial_.clear();
  const Candidate* best = nullptr;
  for (const auto& other : candidates_) {
    if (!wanted(other) || (other.second.lost && now < other.second.retry_at)) continue;
    if (best != nullptr && HopeOf(other.second) >= HopeOf(*best)) continue;
    best = &other.second;
    trial_ = other.first;
  }
  if (best == nullptr) return std::nullopt;
  trial_began_ = now;
  return trial_;
}

bool HomeChooser::MayBeNext(const Candidates::value_type& candidate, const Tried& tried,
                            TimePoint now) {
  const auto& [address, state] = candidate;
  return (!state.lost || now >= state.retry_at) &&
         std::find(tried.begin(), tried.end(), address) == tried.end();
}

bool HomeChooser::HasNext(const std::vector<std::string>& tried, TimePoint now) const {
  return std::any_of(candidates_.begin(), candidates_.end(),
                     [&](const auto& candidate) { return MayBeNext(candidate, tried, now); });
}

std::optional<std::string> HomeChooser::Next(const std::vector<std::string>& tried,
                                             TimePoint now) const {
  const Candidates::value_type* best = nullptr;
  for (const auto& other : candidates_) {
    if (!MayBeNext(other, tried, now)) continue;
    const auto order = [](const Candidate& c) { return std::pair(c.lost, RankOf(c)); };
    if (best == nullptr || order(other.second) < order(best->second)) best = &other;
  }
  if (best == nullptr) return std::nullopt;
  return best->first;
}

}  // namespace cairn::client
