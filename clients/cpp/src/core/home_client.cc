#include "clients/cpp/src/core/home_client.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "common/log/log.h"

namespace cairn::client {
namespace {

constexpr size_t kMaxAttempts = 3;  // Limit for one call.
constexpr size_t kMaxNamespaces = 4096;
constexpr size_t kMaxAddresses = 4096;
constexpr Duration kStep = std::chrono::milliseconds(100);
constexpr Duration kLookUpPause = std::chrono::seconds(1);  // Between two, after a loss.
constexpr Duration kWatchPiece = std::chrono::seconds(1);
constexpr Duration kUnused = std::chrono::seconds(10);  // Then a client is closed.
constexpr Duration kProbeInterval = std::chrono::seconds(5);
constexpr Duration kProbe = std::chrono::milliseconds(500);

template <typename T>
const Status& StatusOf(const Result<T>& result) {
  return result.status();
}

// The node may be gone, so another one may answer.
bool MayBeGone(const Status& status) {
  return status.code() == StatusCode::kUnavailable ||
         status.code() == StatusCode::kDeadlineExceeded;
}

// Notes whether anything has arrived: what was delivered must not come twice.
class NotingSink final : public FetchSink {
 public:
  explicit NotingSink(FetchSink* sink) : sink_(*sink) {}
  bool began() const { return began_; }

  std::span<std::byte> Destination(const SliceInfo& slice) override {
    return sink_.Destination(slice);
  }
  std::vector<std::span<std::byte>> Pieces(const SliceInfo& slice) override {
    return sink_.Pieces(slice);
  }
  Status OnSlice(const SliceInfo& slice, std::span<const std::byte> data) override {
    began_ = true;
    return sink_.OnSlice(slice, data);
  }
  void OnBlockFailed(uint32_t block, MissReason reason) override {
    began_ = true;
    sink_.OnBlockFailed(block, reason);
  }
  bool WantsLent() const override { return sink_.WantsLent(); }
  Status OnLentSlice(const SliceInfo& slice, std::span<const std::byte> data,
                     std::shared_ptr<const LentHold> hold) override {
    began_ = true;
    return sink_.OnLentSlice(slice, data, std::move(hold));
  }
  std::string WantsDevice() const override { return sink_.WantsDevice(); }
  Result<std::vector<DeviceRead>> OnDeviceSlices(std::span<const DeviceSlice> slices) override {
    began_ = true;
    return sink_.OnDeviceSlices(slices);
  }

 private:
  FetchSink& sink_;
  bool began_ = false;
};

}  // namespace

// Leases, pushes and watches hold the tag of their node, whose client is then not closed.
struct HomeClient::Tag {
  std::atomic<bool> is_home{true};
};

struct HomeClient::Node {
  std::string address;
  std::unique_ptr<NodeClient> client;
  std::shared_ptr<Tag> tag = std::make_shared<Tag>();
  TimePoint last_used = {};  // By a call.
  TimePoint next_probe = {};
};

// Ends when the client takes another home.
class HomeClient::HomeEvents final : public EventStream {
 public:
  // `clock` outlives the stream.
  HomeEvents(std::unique_ptr<EventStream> events, std::shared_ptr<const Tag> tag,
             const Clock* clock)
      : clock_(*clock), tag_(std::move(tag)), events_(std::move(events)) {}
  Result<std::optional<CacheEvent>> Next(Duration wait) override {
    const TimePoint now = clock_.Now();
    const TimePoint until = wait < TimePoint::max() - now ? now + wait : TimePoint::max();
    for (;;) {
      if (!tag_->is_home.load(std::memory_order_relaxed)) {
        return Errorf(StatusCode::kUnavailable, "watch: the client uses another node now");
      }
      const Duration left = std::max(until - clock_.Now(), Duration::zero());
      // In short pieces: the old home may be silent for as long as it likes.
      auto event = events_->Next(std::min(left, kWatchPiece));
      if (!event.ok() || event->has_value() || left <= kWatchPiece) return event;
    }
  }
  void Cancel() override { events_->Cancel(); }

 private:
  const Clock& clock_;
  const std::shared_ptr<const Tag> tag_;
  const std::unique_ptr<EventStream> events_;
};

class HomeClient::TaggedPush final : public InPlacePush {
 public:
  TaggedPush(std::unique_ptr<InPlacePush> push, std::shared_ptr<const Tag> tag)
      : tag_(std::move(tag)), push_(std::move(push)) {}
  std::span<const Slot> slots() const override { return push_->slots(); }
  Path path() const override { return push_->path(); }
  Result<std::vector<Status>> Commit() override { return push_->Commit(); }

 private:
  const std::shared_ptr<const Tag> tag_;  // First: the push ends before.
  const std::unique_ptr<InPlacePush> push_;
};

HomeClient::HomeClient(Options options, const Clock* clock, LookUp look_up, MakeClient make_client)
    : options_(std::move(options)),
      clock_(clock),
      look_up_(std::move(look_up)),
      make_client_(std::move(make_client)),
      chooser_(options_.choice) {
  if (options_.look_up_interval == Duration::zero()) {
    const Found found = look_up_();
    MutexLock lock(mu_);
    TakeAddresses(found);
    next_look_up_ = TimePoint::max();
    (void)Open(Home());  // So that its session is there when the first call comes.
  }
  if (options_.has_thread) thread_.emplace(this);
}

HomeClient::~HomeClient() {
  thread_.reset();
  // Not with the mutex: it ends sessions.
  std::map<std::string, NodePtr> nodes;
  {
    MutexLock lock(mu_);
    nodes.swap(nodes_);
  }
}

void HomeClient::TakeAddresses(const Found& found) {
  looked_up_ = found.status;
  // An error makes nothing smaller: what is known stays. To name nobody is an error, too.
  if (found.status.ok() && !found.nodes.empty()) names_.clear();
  for (const NodeAddress& node : found.nodes) {
    if (names_.size() < kMaxAddresses) names_[node.address] = node.name;
  }
  std::vector<std::string> addresses;
  for (const auto& [address, name] : names_) addresses.push_back(address);
  chooser_.SetAddresses(addresses);
  changed_.NotifyAll();
}

void HomeClient::LookUpIfDue() {
  {
    MutexLock lock(mu_);
    if (clock_->Now() < next_look_up_ || stopping_) return;
  }
  const Found found = look_up_();
  if (!found.status.ok()) log::Warn("cache_look_up_failed", {{"reason", ToString(found.status)}});
  MutexLock lock(mu_);
  TakeAddresses(found);
  earliest_look_up_ = clock_->Now() + kLookUpPause;
  next_look_up_ = found.status.ok() ? clock_->Now() + options_.look_up_interval : earliest_look_up_;
}

Result<HomeClient::NodePtr> HomeClient::Open(const std::string& address) {
  if (const auto known = nodes_.find(address); known != nodes_.end()) return known->second;
  std::vector<KnownNamespace> specs;
  for (const auto& [fingerprint, known] : namespaces_) specs.push_back(known);
  const auto name = names_.find(address);
  CAIRN_ASSIGN_OR_RETURN(
      auto client,
      make_client_({.address = address, .name = name == names_.end() ? "" : name->second}, specs));
  auto node = std::make_shared<Node>();
  node->address = address;
  node->client = std::move(client);
  node->tag->is_home = address == told_home_;
  nodes_.emplace(address, node);
  return node;
}

void HomeClient::Look(const Node& node) {
  const NodeCondition condition = node.client->condition();
  chooser_.Saw(node.address, condition, clock_->Now());
  if (condition != NodeCondition::kLost) return;
  // The name may stand for other nodes by now.
  if (options_.look_up_interval > Duration::zero() && node.address == told_home_) {
    next_look_up_ = std::min(next_look_up_, std::max(clock_->Now(), earliest_look_up_));
  }
}

const std::string& HomeClient::Home() {
  const auto now_home = nodes_.find(told_home_);
  if (now_home != nodes_.end()) Look(*now_home->second);
  const std::string& home = chooser_.Home(clock_->Now());
  if (home == told_home_) return home;
  if (now_home != nodes_.end()) now_home->second->tag->is_home = false;
  log::Info("cache_home", {{"node", home}, {"before", told_home_}});
  told_home_ = home;
  if (const auto next = nodes_.find(home); next != nodes_.end()) next->second->tag->is_home = true;
  return home;
}

Status HomeClient::WaitForAddresses(TimePoint deadline) {
  if (!chooser_.empty()) return OkStatus();
  // Only the first look-up is worth waiting for.
  changed_.WaitUntil(mu_, *clock_, deadline, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return looked_up_.has_value() || stopping_;
  });
  if (!chooser_.empty()) return OkStatus();
  return Errorf(StatusCode::kUnavailable, "no address of a node is known: {}",
                !looked_up_        ? "the names were not looked up in time"
                : looked_up_->ok() ? "the names have none"
                                   : ToString(*looked_up_));
}

Result<HomeClient::NodePtr> HomeClient::Choose(TimePoint deadline, std::vector<std::string>* tried,
                                               bool* last) {
  MutexLock lock(mu_);
  CAIRN_RETURN_IF_ERROR(WaitForAddresses(deadline));
  std::string address = Home();
  if (std::find(tried->begin(), tried->end(), address) != tried->end()) {
    const auto next = chooser_.Next(*tried, clock_->Now());
    if (!next) return Errorf(StatusCode::kUnavailable, "no other node may be asked now");
    address = *next;
  }
  CAIRN_ASSIGN_OR_RETURN(NodePtr node, Open(address));
  node->last_used = clock_->Now();
  tried->push_back(address);
  *last = tried->size() >= kMaxAttempts || !chooser_.HasNext(*tried, clock_->Now());
  return node;
}

template <typename Answer, typename Call>
Answer HomeClient::Repeat(Duration within, Call call, const std::function<bool()>& may_repeat) {
  const TimePoint deadline = clock_->Now() + within;
  std::vector<std::string> tried;
  std::optional<Answer> answer;
  for (;;) {
    bool last = false;
    Result<NodePtr> node = Choose(deadline, &tried, &last);
    if (!node.ok()) return answer ? *std::move(answer) : Answer{node.status()};
    const Duration left = deadline - clock_->Now();
    // A node that hangs must leave some time for the next one.
    answer.emplace(call((*node)->tag, *(*node)->client, last ? left : left * 3 / 4));
    if (!MayBeGone(StatusOf(*answer)) || clock_->Now() >= deadline ||
        tried.size() >= kMaxAttempts || (may_repeat && !may_repeat())) {
      return *std::move(answer);
    }
    MutexLock lock(mu_);
    Look(**node);
    // Refused, and there has never been a session: nobody is there.
    if (StatusOf(*answer).code() == StatusCode::kUnavailable &&
        (*node)->client->condition() == NodeCondition::kOpening) {
      chooser_.Saw((*node)->address, NodeCondition::kLost, clock_->Now());
    }
  }
}

template <typename Answer, typename Call>
Answer HomeClient::Once(Duration within, Call call) {
  std::vector<std::string> tried;
  bool last = false;
  const Result<NodePtr> node = Choose(clock_->Now() + within, &tried, &last);
  if (!node.ok()) return Answer{node.status()};
  return call(**node);
}

Result<HomeClient::NodePtr> HomeClient::NodeOf(const Lease& lease) {
  if (!lease.held()) {
    return InvalidArgument("field 'lease': got none, expected a lease from Match");
  }
  MutexLock lock(mu_);
  for (const auto& [address, node] : nodes_) {
    if (node->tag != lease.info().node) continue;
    node->last_used = clock_->Now();
    return node;
  }
  return Errorf(StatusCode::kNotFound, "the client no longer uses the node of lease {}",
                lease.info().id);
}

Status HomeClient::Remember(const NamespaceSpec& spec, const NamespaceOptions& how) {
  CAIRN_RETURN_IF_ERROR(Validate(spec));
  MutexLock lock(mu_);
  if (namespaces_.size() >= kMaxNamespaces) {
    return Errorf(StatusCode::kResourceExhausted, "a client remembers at most {} namespaces",
                  kMaxNamespaces);
  }
  const auto [known, is_new] = namespaces_.try_emplace(Fingerprint(spec), spec, how);
  if (!is_new && (how.block_life.count() == 0 || known->second.how.block_life == how.block_life)) {
    return OkStatus();
  }
  known->second.how = how;
  for (const auto& [address, node] : nodes_) {
    // The home is asked right after this.
    if (address != told_home_) CAIRN_RETURN_IF_ERROR(node->client->Remember(spec, how));
  }
  return OkStatus();
}

Result<OpenedNamespace> HomeClient::OpenNamespace(const NamespaceSpec& spec,
                                                  const CallOptions& options,
                                                  const NamespaceOptions& how) {
  CAIRN_RETURN_IF_ERROR(Remember(spec, how));
  return Repeat<Result<OpenedNamespace>>(
      options.deadline, [&](const auto&, NodeClient& node, Duration within) {
        return node.OpenNamespace(spec, {.deadline = within, .trace = options.trace}, how);
      });
}

Result<MatchOutcome> HomeClient::Match(const Digest& fingerprint, std::span<const BlockKey> keys,
                                       const MatchOptions& options) {
  MatchOptions now = options;
  return Repeat<Result<MatchOutcome>>(
      options.deadline + options.wait, [&](const auto& tag, NodeClient& node, Duration within) {
        now.deadline = std::min(within, options.deadline);
        now.wait = within - now.deadline;
        Result<MatchOutcome> outcome = node.Match(fingerprint, keys, now);
        if (outcome.ok() && outcome->lease.held()) outcome->lease.SetNode(tag);
        return outcome;
      });
}

Status HomeClient::Fetch(const Lease& lease, const FetchRange& range, FetchSink& sink,
                         const FetchOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const NodePtr node, NodeOf(lease));
  return node->client->Fetch(lease, range, sink, options);
}

Status HomeClient::FetchRows(const Lease& lease, const RowLayout& layout, uint32_t layer,
                             std::span<const RowGroup> groups, RowSink& sink,
                             const FetchOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const NodePtr node, NodeOf(lease));
  return node->client->FetchRows(lease, layout, layer, groups, sink, options);
}

Result<MatchOutcome> HomeClient::Get(const Digest& fingerprint, std::span<const BlockKey> keys,
                                     const LayerRange& layers, FetchSink& sink,
                                     const MatchOptions& match, const FetchOptions& fetch) {
  const TimePoint end = clock_->Now() + fetch.deadline;
  NotingSink noting(&sink);
  MatchOptions match_now = match;
  FetchOptions fetch_now = fetch;
  return Repeat<Result<MatchOutcome>>(
      match.deadline,
      [&](const auto&, NodeClient& node, Duration within) {
        match_now.deadline = within;
        fetch_now.deadline = end - clock_->Now();
        return node.Get(fingerprint, keys, layers, noting, match_now, fetch_now);
      },
      [&] { return !noting.began(); });
}

Result<std::vector<Status>> HomeClient::Push(const Digest& fingerprint,
                                             std::span<const PartToPush> parts,
                                             const PushOptions& options) {
  return Once<Result<std::vector<Status>>>(
      options.deadline, [&](Node& node) { return node.client->Push(fingerprint, parts, options); });
}

Result<std::unique_ptr<InPlacePush>> HomeClient::BeginPush(const Digest& fingerprint,
                                                           std::span<const PartToWrite> parts,
                                                           const PushOptions& options) {
  using Answer = Result<std::unique_ptr<InPlacePush>>;
  return Once<Answer>(options.room_deadline.value_or(options.deadline), [&](Node& node) -> Answer {
    CAIRN_ASSIGN_OR_RETURN(auto push, node.client->BeginPush(fingerprint, parts, options));
    return std::make_unique<TaggedPush>(std::move(push), node.tag);
  });
}

Result<PrefetchOutcome> HomeClient::Prefetch(const Digest& fingerprint,
                                             std::span<const BlockKey> keys, Duration needed_in,
                                             const CallOptions& options) {
  return Repeat<Result<PrefetchOutcome>>(
      options.deadline, [&](const auto&, NodeClient& node, Duration within) {
        return node.Prefetch(fingerprint, keys, needed_in,
                             {.deadline = within, .trace = options.trace});
      });
}

Result<std::vector<std::optional<TierKind>>> HomeClient::Exists(const Digest& fingerprint,
                                                                std::span<const BlockKey> keys,
                                                                const CallOptions& options) {
  return Repeat<Result<std::vector<std::optional<TierKind>>>>(
      options.deadline, [&](const auto&, NodeClient& node, Duration within) {
        return node.Exists(fingerprint, keys, {.deadline = within, .trace = options.trace});
      });
}

Result<Duration> HomeClient::RenewLease(const Lease& lease, Duration ttl,
                                        const CallOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const NodePtr node, NodeOf(lease));
  return node->client->RenewLease(lease, ttl, options);
}

Status HomeClient::Flush(const CallOptions& options) {
  return Once<Status>(options.deadline, [&](Node& node) { return node.client->Flush(options); });
}

Result<NodeStats> HomeClient::Stat(const CallOptions& options) {
  return Repeat<Result<NodeStats>>(options.deadline,
                                   [&](const auto&, NodeClient& node, Duration within) {
                                     return node.Stat({.deadline = within, .trace = options.trace});
                                   });
}

Result<std::unique_ptr<EventStream>> HomeClient::WatchEvents(const WatchOptions& options) {
  using Answer = Result<std::unique_ptr<EventStream>>;
  return Once<Answer>(options.deadline, [&](Node& node) -> Answer {
    CAIRN_ASSIGN_OR_RETURN(auto events, node.client->WatchEvents(options));
    return std::make_unique<HomeEvents>(std::move(events), node.tag, clock_);
  });
}

ClientStats HomeClient::GetStats() const {
  MutexLock lock(mu_);
  ClientStats sum = gone_;
  sum.path_reason = "no node is used yet";
  for (const auto& [address, node] : nodes_) {
    const ClientStats stats = node->client->GetStats();
    AddTotals(stats, &sum);
    if (address != told_home_) continue;
    sum.connected = stats.connected;
    sum.breaker = stats.breaker;
    sum.path = stats.path;
    sum.path_reason = stats.path_reason;
    sum.home_node_id = stats.home_node_id;
  }
  sum.home = told_home_;
  sum.home_changes = chooser_.changes();
  return sum;
}

std::vector<HomeClient::NodePtr> HomeClient::TakeUnused(const std::optional<std::string>& trial) {
  std::vector<NodePtr> unused;
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    const NodePtr& node = it->second;
    // Calls hold the node; leases, pushes and watches its tag.
    if (it->first == told_home_ || it->first == trial || node.use_count() > 1 ||
        node->tag.use_count() > 1 || clock_->Now() - node->last_used < kUnused) {
      ++it;
      continue;
    }
    chooser_.Closed(it->first);
    AddTotals(node->client->GetStats(), &gone_);
    unused.push_back(std::move(it->second));
    it = nodes_.erase(it);
  }
  return unused;
}

TimePoint HomeClient::Step() {
  LookUpIfDue();
  NodePtr probed;
  std::vector<NodePtr> unused;
  {
    MutexLock lock(mu_);
    if (stopping_) return TimePoint::max();
    if (chooser_.empty()) return std::min(next_look_up_, clock_->Now() + kStep);
    for (const auto& [address, node] : nodes_) {
      Look(*node);
      if (const auto place = node->client->place()) chooser_.Told(address, *place);
    }
    chooser_.Improve(clock_->Now());
    (void)Open(Home());  // A trial that takes over is open.
    const auto trial = chooser_.Trial(clock_->Now());
    if (trial) {
      if (const auto node = Open(*trial); node.ok() && clock_->Now() >= (*node)->next_probe) {
        probed = *node;
        probed->next_probe = clock_->Now() + kProbeInterval;
      }
    }
    unused = TakeUnused(trial);
  }
  if (probed != nullptr) {
    const Status answer = probed->client->Probe(kProbe);
    MutexLock lock(mu_);
    if (const auto place = probed->client->place()) chooser_.Told(probed->address, *place);
    if (MayBeGone(answer)) {
      probed->next_probe = clock_->Now() + kProbe;
      // Its session may be open all the same, at a process that is stopped.
      if (probed->client->condition() == NodeCondition::kOpen) {
        chooser_.Saw(probed->address, NodeCondition::kLost, clock_->Now());
      }
    }
  }
  return clock_->Now() + kStep;
}

bool HomeClient::WaitForWork(TimePoint until) {
  MutexLock lock(mu_);
  changed_.WaitUntil(mu_, *clock_, until,
                     [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; });
  return !stopping_;
}

void HomeClient::Stop() {
  MutexLock lock(mu_);
  stopping_ = true;
  changed_.NotifyAll();
}

}  // namespace cairn::client
