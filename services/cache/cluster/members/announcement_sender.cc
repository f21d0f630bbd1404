#include "services/cache/cluster/members/announcement_sender.h"

#include <utility>

#include "services/cache/cluster/peer/called_always.h"

namespace cairn::cache {
namespace {

constexpr int kOwnersStepsAtOnce = 32;  // Shards of the walk to new owners.

}  // namespace

void AnnouncementSender::SetMembers(const std::vector<std::string>& ids) {
  std::vector<std::string> newcomers;
  {
    MutexLock lock(mu_);
    std::map<std::string, Stream> streams;
    for (const std::string& id : ids) {
      const auto known = streams_.find(id);
      if (known == streams_.end()) newcomers.push_back(id);
      streams[id] = known == streams_.end() ? Stream() : std::move(known->second);
    }
    streams_ = std::move(streams);
  }
  // The announcer may not have noticed that one left for a moment. Messages that were under way are
  // lost.
  for (const std::string& id : newcomers) announcer_.Restart(id);
}

void AnnouncementSender::Step() {
  for (int i = 0; i < kOwnersStepsAtOnce && !announcer_.Step(); ++i) {
  }
  std::vector<std::string> owners = announcer_.Waiting();
  {
    MutexLock lock(mu_);
    for (const auto& [owner, stream] : streams_) {
      if (stream.unanswered && stream.under_way == 0) owners.push_back(owner);
    }
  }
  for (const std::string& owner : owners) Send(owner);
}

void AnnouncementSender::Send(const std::string& owner) {
  Announcement message;
  uint64_t call = 0;
  {
    MutexLock lock(mu_);
    // The announcer follows the members by and by, and may still name one that left.
    const auto it = streams_.find(owner);
    if (it == streams_.end()) return;
    Stream& stream = it->second;
    if (stream.under_way != 0 || clock_.Now() < stream.not_before) return;
    if (!stream.unanswered) stream.unanswered = announcer_.Next(owner);
    if (!stream.unanswered) return;
    call = stream.under_way = ++messages_;
    message = *stream.unanswered;
  }
  if (owner == options_.self.id) return Sent(owner, call, ApplyHere(message));
  links_.Announce(owner, message, clock_.Now() + options_.deadline,
                  CalledAlways<Status>(
                      [this, owner, call](const Status& status) { Sent(owner, call, status); }));
}

Status AnnouncementSender::ApplyHere(const Announcement& message) {
  return own_.Apply(options_.self.id, options_.self.incarnation, message);
}

void AnnouncementSender::Sent(const std::string& owner, uint64_t call, const Status& status) {
  bool restart = false;
  {
    MutexLock lock(mu_);
    const auto it = streams_.find(owner);
    // The stream may have begun again, with a call of its own.
    if (it == streams_.end() || it->second.under_way != call) return;
    Stream& stream = it->second;
    stream.under_way = 0;
    if (status.ok()) {
      stream.unanswered.reset();
      return;
    }
    ++failures_;
    stream.not_before = clock_.Now() + options_.pause;
    const bool reached = status.code() != StatusCode::kUnavailable &&
                         status.code() != StatusCode::kDeadlineExceeded &&
                         status.code() != StatusCode::kCancelled;
    // The owner misses something, or refuses: it is told everything again.
    if (reached) {
      stream.unanswered.reset();
      restart = true;
    }
  }
  if (restart) announcer_.Restart(owner);
}

std::optional<uint64_t> AnnouncementSender::Settled(const std::string& member) const {
  {
    MutexLock lock(mu_);
    const auto it = streams_.find(member);
    if (it != streams_.end() && it->second.unanswered) return std::nullopt;
  }
  return announcer_.SequenceOf(member);
}

void AnnouncementSender::Check(const std::string& member, uint64_t announced, uint64_t asked_at) {
  const std::optional<uint64_t> now = Settled(member);
  if (now && *now == asked_at && announced != asked_at) announcer_.Restart(member);
}

void AnnouncementSender::Restart(const std::string& member) {
  {
    MutexLock lock(mu_);
    if (const auto it = streams_.find(member); it != streams_.end()) it->second = Stream();
  }
  announcer_.Restart(member);
}

size_t AnnouncementSender::streams() const {
  MutexLock lock(mu_);
  return streams_.size();
}

uint64_t AnnouncementSender::messages() const {
  MutexLock lock(mu_);
  return messages_;
}

uint64_t AnnouncementSender::failures() const {
  MutexLock lock(mu_);
  return failures_;
}

}  // namespace cairn::cache
