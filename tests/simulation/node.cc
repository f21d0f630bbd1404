#include "tests/simulation/node.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "cairn/common/status.h"
#include "clients/cpp/src/slice_assembler.h"

namespace cairn::testing {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(100);
constexpr Duration kDiskAccess = std::chrono::milliseconds(2);
constexpr Duration kLong = std::chrono::hours(1000);

Status Unreachable() { return Status(StatusCode::kUnavailable, "the node is not there"); }

// Gives leases back to the node that gave them, if it still lives.
class Leases final : public client::LeaseOwner {
 public:
  explicit Leases(Node& node) : node_(node) {}
  void ReleaseLease(const client::LeaseInfo& lease) override {
    if (!node_.alive() || lease.session != std::to_string(node_.epoch())) return;
    (void)node_.engine().Release(session, {&lease.id, 1});
  }
  cache::SessionId session = 0;

 private:
  Node& node_;
};

// Thread-safe as all of a simulation: it has one thread.
class NodeClient final : public client::CacheClient {
 public:
  explicit NodeClient(Node& node) : node_(node), leases_(std::make_shared<Leases>(node)) {}

  Result<client::OpenedNamespace> OpenNamespace(const NamespaceSpec& spec,
                                                const client::CallOptions& options,
                                                const client::NamespaceOptions& how) override {
    namespaces_.push_back(spec);
    const Node::Visit visit(node_);
    CAIRN_RETURN_IF_ERROR(Call("open", options.deadline));
    return node_.engine().OpenNamespace(spec, /*strict=*/false, how.block_life);
  }

  Result<client::MatchOutcome> Match(const Digest& fingerprint, std::span<const BlockKey> keys,
                                     const client::MatchOptions& options) override {
    const Node::Visit visit(node_);
    CAIRN_RETURN_IF_ERROR(Call("match", options.deadline));
    CAIRN_ASSIGN_OR_RETURN(
        cache::MatchResult result,
        node_.engine().Match({.session = leases_->session,
                              .fingerprint = fingerprint,
                              .keys = keys,
                              .lease_ttl = options.lease_ttl,
                              .lease = options.lease,
                              .prefill_tokens_per_second = options.prefill_tokens_per_second,
                              .trace = options.trace,
                              .wait = options.wait,
                              .wait_blocks = options.wait_blocks,
                              .announce = options.announce}));
    if (result.further != nullptr) {
      CAIRN_ASSIGN_OR_RETURN(result, Await(*result.further, options));
    }
    client::MatchOutcome outcome;
    static_cast<MatchedPrefix&>(outcome) = result;
    if (result.lease) {
      outcome.lease = client::Lease(leases_, {.id = *result.lease,
                                              .session = std::to_string(node_.epoch()),
                                              .fingerprint = fingerprint,
                                              .blocks = result.matched_blocks,
                                              .expires_at = Now() + result.lease_ttl});
    }
    node_.simulation().Note(fmt::format("matched {} of {}", result.matched_blocks, keys.size()));
    return outcome;
  }

  Status Fetch(const client::Lease& lease, const client::FetchRange& range, client::FetchSink& sink,
               const client::FetchOptions& options) override {
    client::SliceAssembler to(&sink, {.blocks = lease.info().blocks, .verify = options.verify});
    const Status status = FetchInto(lease.info(), range, to, options);
    node_.simulation().Note(
        fmt::format("fetched {} slices: {}", to.counts().slices, ToString(status)));
    return status;
  }

  Result<std::vector<Status>> Push(const Digest& fingerprint,
                                   std::span<const client::PartToPush> parts,
                                   const client::PushOptions& options) override {
    const Node::Visit visit(node_);
    CAIRN_RETURN_IF_ERROR(Call("push", options.deadline));
    CAIRN_RETURN_IF_ERROR(Wait(node_.link().push_time, Now() + options.deadline, {}));
    std::vector<Status> results;
    for (const client::PartToPush& part : parts) {
      CAIRN_RETURN_IF_ERROR(Travel(part.bytes.size(), Now() + options.deadline, {}));
      if (!Connected()) return Unreachable();
      results.push_back(PushOne(fingerprint, part, options.trace));
    }
    return results;
  }

  Result<std::vector<std::optional<TierKind>>> Exists(const Digest& fingerprint,
                                                      std::span<const BlockKey> keys,
                                                      const client::CallOptions& options) override {
    const Node::Visit visit(node_);
    CAIRN_RETURN_IF_ERROR(Call("exists", options.deadline));
    return node_.engine().Exists(fingerprint, keys);
  }

  Result<Duration> RenewLease(const client::Lease& lease, Duration ttl,
                              const client::CallOptions& options) override {
    const Node::Visit visit(node_);
    CAIRN_RETURN_IF_ERROR(Call("renew", options.deadline));
    return node_.engine().RenewLease(leases_->session, lease.info().id, ttl);
  }

  Status Flush(const client::CallOptions& options) override {
    const Node::Visit visit(node_);
    CAIRN_RETURN_IF_ERROR(Call("flush", options.deadline));
    return node_.engine().Flush(Now() + options.deadline);
  }

  Result<client::PrefetchOutcome> Prefetch(const Digest& fingerprint,
                                           std::span<const BlockKey> keys, Duration needed_in,
                                           const client::CallOptions& options) override {
    const Node::Visit visit(node_);
    CAIRN_RETURN_IF_ERROR(Call("prefetch", options.deadline));
    return node_.engine().Prefetch({.session = leases_->session,
                                    .fingerprint = fingerprint,
                                    .keys = keys,
                                    .needed_in = needed_in});
  }

  // Workers do not use these.
  Result<client::NodeStats> Stat(const client::CallOptions&) override {
    return Status(StatusCode::kUnimplemented, "stat");
  }
  Result<std::unique_ptr<client::EventStream>> WatchEvents(const client::WatchOptions&) override {
    return Status(StatusCode::kUnimplemented, "watch");
  }

  client::ClientStats GetStats() const override {
    client::ClientStats stats;
    stats.sessions = sessions_;
    stats.connected = node_.alive();
    return stats;
  }

 private:
  TimePoint Now() const { return node_.simulation().Now(); }
  bool Connected() const { return node_.alive() && epoch_ == node_.epoch(); }

  // A call on its way to the node, with a session there.
  Status Call(std::string_view name, Duration within) {
    node_.simulation().Note(std::string(name));
    CAIRN_RETURN_IF_ERROR(Wait(node_.link().latency, Now() + within, {}));
    if (!node_.alive()) return Unreachable();
    if (Connected()) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(leases_->session, node_.engine().OpenSession("worker"));
    epoch_ = node_.epoch();
    ++sessions_;
    for (const NamespaceSpec& spec : namespaces_) {
      CAIRN_RETURN_IF_ERROR(node_.engine().OpenNamespace(spec, /*strict=*/false).status());
    }
    return OkStatus();
  }

  // The answer of a match that waits.
  Result<cache::MatchResult> Await(cache::FurtherMatch& further,
                                   const client::MatchOptions& options) {
    struct Answer {
      Mutex mu;
      CondVar changed;
      std::optional<Result<cache::MatchResult>> result;
    };
    const auto answer = std::make_shared<Answer>();
    further.Find(Now() + options.deadline + options.wait, [answer](auto result) {
      MutexLock lock(answer->mu);
      answer->result = std::move(result);
      answer->changed.NotifyAll();
    });
    MutexLock lock(answer->mu);
    answer->changed.WaitUntil(answer->mu, node_.simulation().clock(), Now() + kLong,
                              [&] { return answer->result.has_value() || !node_.alive(); });
    if (!answer->result) return Unreachable();
    return *std::move(answer->result);
  }

  Status Travel(uint64_t bytes, TimePoint deadline, const std::stop_token& cancel) {
    const std::chrono::duration<double> time(static_cast<double>(bytes) /
                                             node_.link().bytes_per_second);
    return Wait(std::chrono::duration_cast<Duration>(time), deadline, cancel);
  }

  // DEADLINE_EXCEEDED, CANCELLED or UNAVAILABLE when that comes first.
  Status Wait(Duration time, TimePoint deadline, const std::stop_token& cancel) {
    const TimePoint end = Now() + time;
    const bool was_alive = node_.alive();
    const uint64_t epoch = node_.epoch();
    const auto broken = [&] { return was_alive && (!node_.alive() || node_.epoch() != epoch); };
    Mutex mu;
    MutexLock lock(mu);
    CondVar never;
    never.WaitUntil(mu, node_.simulation().clock(), std::min(end, deadline),
                    [&] { return cancel.stop_requested() || broken(); });
    if (cancel.stop_requested()) return Status(StatusCode::kCancelled, "cancelled by the caller");
    if (broken()) return Unreachable();
    if (Now() < end) return Status(StatusCode::kDeadlineExceeded, "no answer from the node");
    return OkStatus();
  }

  Status FetchInto(const client::LeaseInfo& lease, const client::FetchRange& range,
                   client::SliceAssembler& to, const client::FetchOptions& options) {
    const TimePoint deadline = Now() + options.deadline;
    const Node::Visit visit(node_);
    CAIRN_RETURN_IF_ERROR(Call("fetch", std::min(options.progress, options.deadline)));
    CAIRN_ASSIGN_OR_RETURN(const auto stream,
                           node_.engine().Fetch({.session = leases_->session,
                                                 .lease = lease.id,
                                                 .block_begin = range.block_begin,
                                                 .block_end = range.block_end,
                                                 .layer_begin = range.layer_begin,
                                                 .layer_end = range.layer_end,
                                                 .reader_verifies = true,
                                                 .trace = options.trace}));
    while (true) {
      const TimePoint until = std::min(deadline, Now() + options.progress);
      CAIRN_ASSIGN_OR_RETURN(const auto item, stream->Next(until));
      if (!item) return OkStatus();
      if (const auto* failure = std::get_if<cache::FetchFailure>(&*item)) {
        to.Fail(failure->block, failure->reason);
        continue;
      }
      const auto& slice = std::get<cache::FetchedSlice>(*item);
      CAIRN_RETURN_IF_ERROR(Travel(slice.data.size(), until, options.cancel));
      CAIRN_RETURN_IF_ERROR(Trouble(to.counts().slices, until, options.cancel));
      CAIRN_RETURN_IF_ERROR(to.Take({.slice = slice, .chunks = {slice.data}}));
    }
  }

  // The fault that the test wants after `slices` slices.
  Status Trouble(uint64_t slices, TimePoint until, const std::stop_token& cancel) {
    if (slices == node_.link().silent_after_slices) {
      return Wait(kLong, until, cancel);
    }
    if (slices != node_.link().dies_after_slices) return OkStatus();
    node_.Die();
    return Unreachable();
  }

  Status PushOne(const Digest& fingerprint, const client::PartToPush& part,
                 const std::string& trace) {
    cache::CacheEngine& engine = node_.engine();
    const cache::ReservePartRequest room{.key = part.key,
                                         .parent = part.parent,
                                         .first_position = part.first_position,
                                         .part = part.rect,
                                         .bytes = part.bytes.size(),
                                         .compute_seconds = part.compute_seconds};
    CAIRN_ASSIGN_OR_RETURN(const auto reserved,
                           engine.Reserve(leases_->session, fingerprint, {&room, 1}, Duration(0)));
    if (reserved[0].status().code() == StatusCode::kAlreadyExists) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const cache::ReservationId id, reserved[0]);
    CAIRN_RETURN_IF_ERROR(engine.Write(leases_->session, id, 0, part.bytes));
    CAIRN_ASSIGN_OR_RETURN(const auto results, engine.Commit(leases_->session, {&id, 1}, trace));
    // Another writer was first: as good as stored.
    return results[0].code() == StatusCode::kAlreadyExists ? OkStatus() : results[0];
  }

  Node& node_;
  const std::shared_ptr<Leases> leases_;
  std::vector<NamespaceSpec> namespaces_;
  uint64_t epoch_ = 0;  // The epoch of the node when the session was opened.
  uint64_t sessions_ = 0;
};

}  // namespace

void Node::Start() {
  Stop();
  cache::HostTierOptions host;
  host.capacity_bytes = options_.host_bytes;
  host.prefault = false;
  host.check_memory = false;
  host_ = *cache::HostTier::Create(host);
  pool_ = std::make_unique<SimulatedPool>(simulation_);
  timers_ = std::make_unique<Timers>(&simulation_.clock());
  ++epoch_;
  cache::Tiers tiers(host_.get());
  if (options_.disk) tiers.Add(&disk_);
  engine_ = *cache::CacheEngine::Create({}, {.tiers = tiers,
                                             .clock = &simulation_.clock(),
                                             .executor = pool_.get(),
                                             .node_id = "node",
                                             .node_epoch = epoch_,
                                             .timers = timers_.get()});
  alive_ = true;
  disk_.HoldCallbacks();
  (void)pool_->Post([this] {
    while (alive_) {
      engine_->Tick();
      Wait(kTick, [this] { return !alive_; });
    }
  });
  (void)pool_->Post([this] {
    while (alive_) {
      const TimePoint next = timers_->next();
      Wait(std::min(kLong, next - simulation_.Now()),
           [this, next] { return !alive_ || timers_->next() < next; });
      timers_->RunDue();
    }
  });
  (void)pool_->Post([this] {
    while (alive_) {
      Wait(kLong, [this] { return !alive_ || disk_.held() > 0; });
      Wait(kDiskAccess, [this] { return !alive_; });
      disk_.RunHeld();
    }
  });
}

void Node::Die() {
  alive_ = false;
  link_ = {};
}

void Node::Stop() {
  Die();
  Wait(kLong, [this] { return visits_ == 0; });
  if (engine_ == nullptr) return;
  // Whatever the disk does now is lost, but it must come to its end.
  disk_.HoldCallbacks(false);
  disk_.RunHeld();
  pool_->Stop();
  engine_.reset();
  timers_.reset();
  pool_.reset();
  host_.reset();
  disk_.Crash();
}

void Node::Flush() {
  CAIRN_CHECK(engine_->Flush(simulation_.Now() + std::chrono::seconds(60)).ok());
}

void Node::Wait(Duration time, const std::function<bool()>& ready) {
  Mutex mu;
  MutexLock lock(mu);
  CondVar never;
  never.WaitUntil(mu, simulation_.clock(), simulation_.Now() + time, ready);
}

std::unique_ptr<client::CacheClient> NewClient(Node& node) {
  return std::make_unique<NodeClient>(node);
}

}  // namespace cairn::testing
