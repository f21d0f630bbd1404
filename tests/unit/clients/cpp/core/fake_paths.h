#pragma once
// Paths to a node that answer what a test says.

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "clients/cpp/src/core/transport.h"

namespace cairn::client::testing {

// A session link whose node comes and goes. Not thread-safe.
class FakeLink final : public SessionLink {
 public:
  Result<SessionInfo> Open() override {
    ++opens;
    if (!refusal.ok()) return refusal;
    alive = true;
    return SessionInfo{.id = "session-" + std::to_string(++sessions)};
  }
  bool IsOpen(bool thorough) override {
    ++looks;
    thorough_looks += thorough;
    return alive;
  }
  Status Close() override {
    ++closes;
    alive = false;
    return Errorf(StatusCode::kUnavailable, "the node fell asleep");
  }
  void Wait(TimePoint) override {}
  void Cancel() override {}

  Status refusal;      // Not OK: the node opens no session.
  bool alive = false;  // The session has not ended.
  int opens = 0, sessions = 0, looks = 0, thorough_looks = 0, closes = 0;
};

// A match of a FakePath. Not OK: the error. 0 blocks: a miss.
struct FakeMatch {
  // Implicit, as that of Result.
  FakeMatch(Status s = OkStatus()) : status(std::move(s)) {}
  Status status;
  uint32_t blocks = 3;
};
struct FakeGet {
  uint32_t blocks = 0;
  FetchReport fetch = {};
};

// The calls of Transport, for both kinds of paths. Not thread-safe.
template <typename Base, Path kPath>
class FakePath : public Base {
 public:
  Path path() const override { return kPath; }
  std::optional<Result<Matched>> Match(const TransportCall&, const Digest&,
                                       std::span<const BlockKey>, const MatchOptions&) override {
    ++matches;
    if (on_match) on_match();
    if (!matched) return std::nullopt;
    if (!matched->status.ok()) return matched->status;
    Matched found = {.outcome = {{.matched_blocks = matched->blocks}}};
    if (matched->blocks == 0) return found;
    found.lease = 7;
    found.lease_ttl = std::chrono::seconds(30);
    return found;
  }
  std::optional<FetchReport> Fetch(const LeaseInfo&, const FetchRange& range, FetchSink&,
                                   const FetchOptions&, TimePoint) override {
    if (!fetched) return std::nullopt;
    fetched_ranges.push_back({range.block_begin, range.block_end});
    if (on_fetch) on_fetch();
    return fetched;
  }
  std::optional<PushReport> Push(const TransportCall&, const Digest&,
                                 std::span<const PartToPush> parts, const PushOptions&) override {
    pushed_parts += parts.size();
    return pushed;
  }
  std::optional<Result<TierList>> Exists(const TransportCall&, const Digest&,
                                         std::span<const BlockKey>, const CallOptions&) override {
    return exists;
  }
  std::optional<Result<Duration>> Renew(const LeaseInfo&, Duration, const CallOptions&,
                                        TimePoint) override {
    return renewed;
  }
  bool Release(const LeaseInfo& lease) override {
    if (!owns_leases) return false;
    released.push_back(lease.id);
    return true;
  }

  std::optional<FakeMatch> matched;
  std::optional<FetchReport> fetched;
  std::optional<PushReport> pushed;
  std::optional<Result<TierList>> exists;
  std::optional<Result<Duration>> renewed;
  bool owns_leases = true;
  std::function<void()> on_match, on_fetch;

  int matches = 0;
  std::vector<std::pair<uint32_t, uint32_t>> fetched_ranges;
  size_t pushed_parts = 0;
  std::vector<uint64_t> released;
};

class FakeNear final : public FakePath<NearTransport, Path::kLocal> {
 public:
  State GetState() const override { return {.open = true, .sessions = 1}; }
  Status Unavailable() const override {
    return Errorf(StatusCode::kUnavailable, "no same-node session: closed for today");
  }
  void Remember(const Digest&, std::string_view) override { ++remembered; }
  void Prepare(const TransportCall&, const Digest&) override { ++prepared; }
  void CheckAlive() override { ++checked; }
  std::optional<Result<std::unique_ptr<InPlacePush>>> BeginPush(const TransportCall&, const Digest&,
                                                                std::span<const PartToWrite>,
                                                                const PushOptions&,
                                                                const InPlaceHooks&) override {
    if (!begun) return std::nullopt;
    return *begun;
  }
  std::optional<Status> begun;  // The status of BeginPush.
  int remembered = 0, prepared = 0, checked = 0;
};

class FakeMain final : public FakePath<MainTransport, Path::kGrpc> {
 public:
  SessionLink& link() override { return link_; }
  void Look() override {}
  uint64_t dropped_releases() const override { return 0; }
  Result<OpenedNamespace> OpenNamespace(const NamespaceSpec& spec, const NamespaceOptions& how,
                                        const CallOptions&, TimePoint) override {
    ++namespaces_opened;
    last_block_life = how.block_life;
    if (!namespace_refusal.ok()) return namespace_refusal;
    return OpenedNamespace{.fingerprint = Fingerprint(spec),
                           .created = std::exchange(creates, false)};
  }
  std::optional<GetReport> Get(const TransportCall&, const Digest&, std::span<const BlockKey>,
                               const LayerRange&, FetchSink&, const MatchOptions&,
                               const FetchOptions&, TimePoint) override {
    ++gets;
    if (on_fetch) on_fetch();
    if (!got) return std::nullopt;
    return GetReport{.outcome = MatchOutcome{{.matched_blocks = got->blocks}}, .fetch = got->fetch};
  }
  Result<PrefetchOutcome> Prefetch(const TransportCall&, const Digest&, std::span<const BlockKey>,
                                   Duration, const CallOptions&) override {
    return PrefetchOutcome{};
  }
  Status Flush(const CallOptions&, TimePoint) override { return OkStatus(); }
  Result<NodeStats> Stat(const CallOptions&, TimePoint) override { return NodeStats{}; }
  Result<std::unique_ptr<EventStream>> WatchEvents(const SessionPtr& session,
                                                   const WatchOptions&) override {
    watched_by.push_back(session == nullptr ? "" : session->id);
    return Errorf(StatusCode::kUnimplemented, "no events");
  }

  FakeLink link_;
  Status namespace_refusal;
  bool creates = false;  // The next namespace is new to the node.
  std::optional<FakeGet> got;
  Duration last_block_life{0};
  int namespaces_opened = 0, gets = 0;
  std::vector<std::string> watched_by;  // Ids of sessions; empty: nobody's.
};

}  // namespace cairn::client::testing
