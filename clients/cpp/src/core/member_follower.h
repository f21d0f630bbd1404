#pragma once
// Follows the events of one member, in steps.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/client/cluster_events.h"
#include "cairn/common/clock.h"

namespace cairn::client {

// One thread at a time.
class MemberFollower {
 public:
  struct Options {
    std::optional<Digest> fingerprint = {};
    // The stream has all events of the node, so each number follows the one before.
    bool whole = true;
    Duration lost_after = std::chrono::seconds(5);
    Duration first_pause = std::chrono::milliseconds(100);  // Doubles up to longest_pause.
    Duration longest_pause = std::chrono::seconds(2);
  };
  // Transport and clock outlive it.
  MemberFollower(std::string node_id, std::string address, const Options& options,
                 ClusterTransport* transport, const Clock* clock);

  // Adds what has happened to `out`, and waits at most `wait` for it. False: nothing can happen
  // before resume_at().
  bool Step(Duration wait, std::vector<MemberEvent>* out);
  TimePoint resume_at() const { return not_before_; }
  // The member goes: adds kMemberLost, if that was not told yet.
  void End(std::vector<MemberEvent>* out);

  // Its events come.
  bool works() const { return !broken_since_.has_value(); }
  const std::string& node_id() const { return node_id_; }
  const std::string& address() const { return address_; }

 private:
  void Handle(const CacheEvent& event, std::vector<MemberEvent>* out);
  // The stream goes on with a snapshot. `pause`: not at once.
  void BeginAgain(bool pause);
  void TellIfLost(std::vector<MemberEvent>* out);
  void Tell(MemberEvent::Kind kind, std::vector<MemberEvent>* out) const {
    out->push_back({.kind = kind, .node_id = node_id_, .address = address_});
  }

  const std::string node_id_, address_;
  const Options options_;
  ClusterTransport& transport_;
  const Clock& clock_;
  std::unique_ptr<EventStream> stream_;
  enum class Phase : uint8_t { kOpening, kSnapshot, kLive } phase_ = Phase::kOpening;
  uint64_t epoch_ = 0, sequence_ = 0;
  std::optional<TimePoint> broken_since_;
  bool told_ = false;  // Something of the member was told that it is not lost.
  bool lost_ = false;
  TimePoint not_before_{};
  Duration pause_{0};
};

}  // namespace cairn::client
