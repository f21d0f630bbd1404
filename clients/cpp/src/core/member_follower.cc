#include "clients/cpp/src/core/member_follower.h"

#include <algorithm>
#include <utility>

namespace cairn::client {
namespace {

// For a client that names a tenant: until its session is open.
constexpr Duration kSessionWait = std::chrono::seconds(1);

}  // namespace

MemberFollower::MemberFollower(std::string node_id, std::string address, const Options& options,
                               ClusterTransport* transport, const Clock* clock)
    : node_id_(std::move(node_id)),
      address_(std::move(address)),
      options_(options),
      transport_(*transport),
      clock_(*clock),
      broken_since_(clock->Now()) {}

bool MemberFollower::Step(Duration wait, std::vector<MemberEvent>* out) {
  TellIfLost(out);
  if (stream_ == nullptr) {
    if (clock_.Now() < not_before_) return false;
    auto stream = transport_.Watch(
        address_,
        {.fingerprint = options_.fingerprint, .snapshot = true, .deadline = kSessionWait});
    if (!stream.ok()) {
      BeginAgain(/*pause=*/true);
      return false;
    }
    stream_ = *std::move(stream);
  }
  const Result<std::optional<CacheEvent>> event = stream_->Next(wait);
  if (!event.ok()) {
    // A watcher that was too slow is welcome to begin again at once.
    BeginAgain(event.status().code() != StatusCode::kResourceExhausted);
    return stream_ == nullptr && clock_.Now() >= not_before_;
  }
  if (*event) Handle(**event, out);
  return true;
}

void MemberFollower::Handle(const CacheEvent& event, std::vector<MemberEvent>* out) {
  switch (phase_) {
    case Phase::kOpening:
      phase_ = Phase::kSnapshot;
      epoch_ = event.node_epoch;
      sequence_ = event.sequence;
      broken_since_.reset();
      pause_ = Duration(0);
      lost_ = false;
      told_ = true;
      Tell(MemberEvent::Kind::kSnapshotBegins, out);
      [[fallthrough]];
    case Phase::kSnapshot:
      // All of a snapshot has the number of the last event before it.
      if (event.node_epoch != epoch_ || event.sequence != sequence_) return BeginAgain(true);
      if (event.kind == CacheEvent::Kind::kSnapshotEnd) {
        phase_ = Phase::kLive;
        return Tell(MemberEvent::Kind::kSnapshotEnds, out);
      }
      break;
    case Phase::kLive:
      if (event.node_epoch != epoch_ || event.sequence <= sequence_ ||
          (options_.whole && event.sequence != sequence_ + 1)) {
        return BeginAgain(false);
      }
      sequence_ = event.sequence;
      if (event.kind == CacheEvent::Kind::kSnapshotEnd) return;
      break;
  }
  Tell(MemberEvent::Kind::kEvent, out);
  out->back().event = event;
}

void MemberFollower::BeginAgain(bool pause) {
  stream_.reset();
  phase_ = Phase::kOpening;
  if (!broken_since_) broken_since_ = clock_.Now();
  if (!pause) return;
  pause_ =
      pause_ == Duration(0) ? options_.first_pause : std::min(pause_ * 2, options_.longest_pause);
  not_before_ = clock_.Now() + pause_;
}

void MemberFollower::TellIfLost(std::vector<MemberEvent>* out) {
  if (!told_ || lost_ || !broken_since_) return;
  if (clock_.Now() < *broken_since_ + options_.lost_after) return;
  lost_ = true;
  Tell(MemberEvent::Kind::kMemberLost, out);
}

void MemberFollower::End(std::vector<MemberEvent>* out) {
  stream_.reset();
  if (told_ && !std::exchange(lost_, true)) Tell(MemberEvent::Kind::kMemberLost, out);
}

}  // namespace cairn::client
