#include "services/cache/serve/rpc/grpc_peer_links.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cairn/v1/peer.grpc.pb.h"
#include "common/concurrency/runs_once.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "common/rpc/trace.h"
#include "protocol/wire/message_limits.h"
#include "services/cache/serve/rpc/peer_convert.h"

namespace cairn::cache {
namespace {

constexpr Duration kIdle = std::chrono::seconds(60);

Status NoAddress(const std::string& member) {
  return Errorf(StatusCode::kUnavailable, "member '{}' is not in the cluster at present", member);
}

// gRPC does not say which name it misses.
Status WithName(const Status& status, const std::string& name) {
  if (Message(status).find("Hostname Verification") == std::string::npos) return status;
  return Errorf(status.code(), "{}; the certificate there has not the name '{}'", Message(status),
                name);
}

}  // namespace

// A call. Owns itself until its last event.
class GrpcPeerLinks::Operation {
 public:
  explicit Operation(GrpcPeerLinks* owner, std::shared_ptr<Connection> to, TimePoint deadline)
      : owner_(*owner), to_(std::move(to)), stub_(to_->channel) {
    context_.set_deadline(rpc::CallDeadline(deadline));
  }
  virtual ~Operation() = default;
  // An event on the poller. `ok`: as gRPC's. False: it was the last one, and Conclude follows.
  virtual bool Proceed(bool ok) = 0;
  // Runs the callback. Once, on any thread.
  virtual void Conclude() = 0;
  // Conclude may hash a block, or do a part of a match.
  virtual bool may_take_long() const = 0;
  // Any thread, while it is open.
  void Cancel() { context_.TryCancel(); }
  virtual void CancelIfSilent(TimePoint /*now*/) {}
  Connection& connection() { return *to_; }
  // The call's trace id. Before it starts.
  void SetTrace(const std::string& trace) {
    if (rpc::IsTrace(trace)) context_.AddMetadata(rpc::kTraceMetadata, trace);
  }

 protected:
  GrpcPeerLinks& owner_;
  const std::shared_ptr<Connection> to_;
  v1::Peer::Stub stub_;
  grpc::ClientContext context_;
  grpc::Status status_;
};

template <typename Response, typename Done>
class GrpcPeerLinks::Unary final : public Operation {
 public:
  Unary(GrpcPeerLinks* owner, std::shared_ptr<Connection> to, TimePoint deadline, Done done)
      : Operation(owner, std::move(to), deadline), done_(std::move(done)) {}
  template <typename Request, typename Prepare>
  void Start(const Request& request, Prepare prepare) {
    reader_ = (stub_.*prepare)(&context_, request, &owner_.queue_);
    reader_->StartCall();
    reader_->Finish(&response_, &status_, static_cast<Operation*>(this));
  }
  bool Proceed(bool /*ok*/) override { return false; }
  bool may_take_long() const override {
    return std::is_same_v<Response, v1::FindResponse> ||
           std::is_same_v<Response, v1::PeerMatchResponse>;
  }
  void Conclude() override {
    Status status = rpc::FromGrpc(status_);
    if constexpr (std::is_same_v<Response, v1::HelloResponse>) {
      // Later calls go to this address because of what it says here.
      if (status.ok()) {
        status = owner_.options_.rule.Check(net::NamesOf(context_.auth_context().get()),
                                            response_.callee().caller().node_id());
      }
    }
    done_(status, response_);
  }

 private:
  Done done_;
  Response response_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader_;
};

// A block comes: first what it is, then its bytes, which go where the sink says. A block that is
// lent has no bytes here, and the sink hears nothing of it.
class GrpcPeerLinks::BlockRead final : public Operation {
 public:
  BlockRead(GrpcPeerLinks* owner, std::shared_ptr<Connection> to, TimePoint deadline,
            Duration silence, BlockSink* sink, ReadDone done)
      : Operation(owner, std::move(to), deadline),
        silence_(silence),
        sink_(*sink),
        done_(std::move(done)) {}

  void Start(const v1::PeerReadRequest& request) {
    may_be_lent_ = request.may_be_lent();
    Heard();
    reader_ = stub_.PrepareAsyncRead(&context_, request, &owner_.queue_);
    reader_->StartCall(Tag());
  }

  bool Proceed(bool ok) override {
    switch (step_) {
      case Step::kStart:
        if (!ok) return Finish();
        break;
      case Step::kFrame:
        if (!ok) return Finish();
        Heard();
        if (Status taken = Take(); !taken.ok()) {
          verdict_ = std::move(taken);
          context_.TryCancel();
          return Finish();
        }
        break;
      case Step::kFinish:
        // Whatever takes long from now on is this node's own work.
        answer_.silent = verdict_.ok() && late_.load(std::memory_order_relaxed);
        return false;
    }
    step_ = Step::kFrame;
    reader_->Read(&frame_, Tag());
    return true;
  }

  bool may_take_long() const override { return true; }
  void Conclude() override {
    Status status = verdict_;
    if (answer_.silent) status = Errorf(StatusCode::kDeadlineExceeded, "the member was silent");
    if (status.ok()) status = rpc::FromGrpc(status_);
    if (verdict_.ok() && status.code() == StatusCode::kDataLoss) {
      status = Errorf(StatusCode::kNotFound, "the member's copy is damaged: {}", Message(status));
    }
    if (status.ok() && answer_.lent && !began_) return done_(status, std::move(answer_));
    if (status.ok() && (!began_ || part_ < rooms_.size())) {
      status = Errorf(StatusCode::kDataLoss, "the member sent fewer bytes than the block has");
    }
    if (status.ok()) status = sink_.Finish();
    answer_.lent.reset();
    done_(std::move(status), std::move(answer_));
  }

  void CancelIfSilent(TimePoint now) override {
    if (now.time_since_epoch().count() < silent_after_.load(std::memory_order_relaxed)) return;
    late_.store(true, std::memory_order_relaxed);
    context_.TryCancel();
  }

 private:
  enum class Step : uint8_t { kStart, kFrame, kFinish };

  void* Tag() { return static_cast<Operation*>(this); }
  void Heard() {
    silent_after_.store((SteadyClock::Get().Now() + silence_).time_since_epoch().count(),
                        std::memory_order_relaxed);
  }
  bool Finish() {
    step_ = Step::kFinish;
    reader_->Finish(&status_, Tag());
    return true;
  }

  Status Take() {
    if (frame_.has_busy()) {
      const auto& takers = frame_.busy().takers();
      const int named = std::min(takers.size(), static_cast<int>(PeerReadAnswer::kMostOthers));
      answer_.others.assign(takers.begin(), takers.begin() + named);
      return Errorf(StatusCode::kResourceExhausted, "too many members take the block now");
    }
    if (frame_.has_block()) {
      const Result<SourceBlock> block = ToSourceBlock(frame_.block());
      if (!block.ok()) return Errorf(StatusCode::kDataLoss, "{}", Message(block.status()));
      if (frame_.has_lent()) return TakeLent(*block);
      CAIRN_ASSIGN_OR_RETURN(rooms_, sink_.Begin(*block));
      part_ = at_ = 0;
      began_ = true;
    }
    std::string_view data = frame_.data();
    while (!data.empty()) {
      if (part_ >= rooms_.size()) {
        return Errorf(StatusCode::kDataLoss, "the member sent more bytes than the block has");
      }
      const size_t size = std::min(data.size(), rooms_[part_].size() - at_);
      std::memcpy(rooms_[part_].data() + at_, data.data(), size);
      data.remove_prefix(size);
      at_ += size;
      if (at_ == rooms_[part_].size()) {
        ++part_;
        at_ = 0;
      }
    }
    return OkStatus();
  }

  Status TakeLent(const SourceBlock& block) {
    if (!may_be_lent_) {
      return Errorf(StatusCode::kDataLoss, "the member lent the block without being asked");
    }
    const Result<LentPlace> place = ToLentPlace(frame_.lent(), block);
    if (!place.ok()) return Errorf(StatusCode::kDataLoss, "{}", Message(place.status()));
    answer_.lent = LentBlock{block, *place};
    return OkStatus();
  }

  const Duration silence_;
  BlockSink& sink_;
  ReadDone done_;
  std::unique_ptr<grpc::ClientAsyncReader<v1::PeerReadFrame>> reader_;
  v1::PeerReadFrame frame_;
  Step step_ = Step::kStart;
  std::vector<std::span<std::byte>> rooms_;
  size_t part_ = 0, at_ = 0;
  bool may_be_lent_ = false, began_ = false;
  Status verdict_;
  PeerReadAnswer answer_;
  std::atomic<Duration::rep> silent_after_{0};
  std::atomic<bool> late_{false};
};

GrpcPeerLinks::GrpcPeerLinks(Options options)
    : options_(std::move(options)),
      credentials_(options_.tls ? net::MakeChannelCredentials(options_.files)
                                : grpc::InsecureChannelCredentials()),
      poller_([this] { Poll(); }) {}

GrpcPeerLinks::~GrpcPeerLinks() {
  Stop();
  queue_.Shutdown();
  poller_.join();
}

void GrpcPeerLinks::Stop() {
  MutexLock lock(mu_);
  stopping_ = true;
  for (Operation* const operation : open_) operation->Cancel();
  ended_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return alive_ == 0; });
}

void GrpcPeerLinks::Poll() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
    auto* const operation = static_cast<Operation*>(tag);
    if (!operation->Proceed(ok)) Conclude(operation);
  }
}

void GrpcPeerLinks::Conclude(Operation* operation) {
  const auto conclude = RunsOnce(
      [this, operation](const Status& status) {
        if (status.ok()) operation->Conclude();
        End(operation);
      },
      [] { return Errorf(StatusCode::kCancelled, "the executor went away"); });
  if (operation->may_take_long() && options_.executor != nullptr) {
    const Status posted = options_.executor->Post([conclude] { conclude(OkStatus()); });
    if (posted.ok()) return;
  }
  conclude(OkStatus());
}

bool GrpcPeerLinks::Begin(Operation* operation) {
  MutexLock lock(mu_);
  if (stopping_) return false;
  open_.insert(operation);
  ++alive_;
  ++operation->connection().calls;
  return true;
}

void GrpcPeerLinks::End(Operation* operation) {
  {
    MutexLock lock(mu_);
    Connection& connection = operation->connection();
    connection.used = SteadyClock::Get().Now();
    --connection.calls;
    open_.erase(operation);
  }
  // Whoever waits for the end must find the callback gone, too.
  delete operation;
  MutexLock lock(mu_);
  --alive_;
  ended_.NotifyAll();
}

void GrpcPeerLinks::SetAddresses(const std::map<std::string, std::string>& addresses) {
  MutexLock lock(mu_);
  addresses_ = addresses;
}

std::shared_ptr<GrpcPeerLinks::Connection> GrpcPeerLinks::To(const std::string& member) {
  std::string address;
  {
    MutexLock lock(mu_);
    const auto it = addresses_.find(member);
    if (it == addresses_.end()) return nullptr;
    address = it->second;
  }
  return ToAddress(address);
}

std::shared_ptr<GrpcPeerLinks::Connection> GrpcPeerLinks::ToAddress(const std::string& address) {
  MutexLock lock(mu_);
  std::shared_ptr<Connection>& connection = connections_[address];
  if (connection == nullptr) {
    grpc::ChannelArguments args = rpc::ChannelArguments(wire::kMaxMessageBytes);
    if (!options_.server_name.empty()) args.SetSslTargetNameOverride(options_.server_name);
    connection =
        std::make_shared<Connection>(grpc::CreateCustomChannel(address, credentials_, args));
  }
  connection->used = SteadyClock::Get().Now();
  connection->reconnect.BeforeCall(connection->used);
  return connection;
}

size_t GrpcPeerLinks::connections() const {
  MutexLock lock(mu_);
  return connections_.size();
}

void GrpcPeerLinks::Tick() {
  const TimePoint now = SteadyClock::Get().Now();
  std::vector<std::shared_ptr<Connection>> idle;  // Closed without the lock.
  MutexLock lock(mu_);
  for (Operation* const operation : open_) operation->CancelIfSilent(now);
  for (auto it = connections_.begin(); it != connections_.end();) {
    const auto at = it++;
    if (at->second->calls > 0 || now < at->second->used + kIdle) continue;
    idle.push_back(std::move(at->second));
    connections_.erase(at);
  }
}

template <typename Request, typename Response, typename Done, typename Prepare>
void GrpcPeerLinks::Call(std::shared_ptr<Connection> to, const Request& request, TimePoint deadline,
                         Done done, Prepare prepare, const std::string& trace) {
  auto call =
      std::make_unique<Unary<Response, Done>>(this, std::move(to), deadline, std::move(done));
  call->SetTrace(trace);
  if (!Begin(call.get())) return;
  call.release()->Start(request, prepare);
}

void GrpcPeerLinks::Hello(const std::string& address, const PeerHello& hello, TimePoint deadline,
                          HelloDone done) {
  v1::HelloRequest request;
  ToProto(hello, &request);
  Call<v1::HelloRequest, v1::HelloResponse>(
      ToAddress(address), request, deadline,
      [done = std::move(done), name = options_.server_name.empty()
                                          ? address.substr(0, address.rfind(':'))
                                          : options_.server_name](
          const Status& status, const v1::HelloResponse& response) {
        if (!status.ok()) return done(WithName(status, name));
        Result<PeerHello> callee = ToHello(response.callee());
        if (!callee.ok()) return done(callee.status());
        done(PeerHelloAnswer{.callee = *std::move(callee), .announced = response.announced()});
      },
      &v1::Peer::Stub::PrepareAsyncHello);
}

void GrpcPeerLinks::Announce(const std::string& member, const Announcement& message,
                             TimePoint deadline, AnnounceDone done) {
  auto to = To(member);
  if (to == nullptr) return done(NoAddress(member));
  v1::AnnounceRequest request;
  ToProto(options_.self, request.mutable_caller());
  ToProto(message, &request);
  Call<v1::AnnounceRequest, v1::AnnounceResponse>(
      std::move(to), request, deadline,
      [done = std::move(done)](const Status& status, const v1::AnnounceResponse&) { done(status); },
      &v1::Peer::Stub::PrepareAsyncAnnounce);
}

void GrpcPeerLinks::ExchangeBumps(const std::string& member, const BumpPage& page,
                                  TimePoint deadline, BumpsDone done) {
  auto to = To(member);
  if (to == nullptr) return done(NoAddress(member));
  v1::BumpPage request;
  ToProto(options_.self, request.mutable_caller());
  ToProto(page, &request);
  Call<v1::BumpPage, v1::BumpPage>(
      std::move(to), request, deadline,
      [done = std::move(done)](const Status& status, const v1::BumpPage& response) {
        if (!status.ok()) return done(status);
        done(ToBumpPage(response));
      },
      &v1::Peer::Stub::PrepareAsyncExchangeBumps);
}

void GrpcPeerLinks::Find(const std::string& member, const std::vector<WaymarkHash>& waymarks,
                         const Patience& patience, FindDone done) {
  auto to = To(member);
  if (to == nullptr) return done(NoAddress(member));
  v1::FindRequest request;
  ToProto(options_.self, request.mutable_caller());
  request.mutable_waymarks()->Add(waymarks.begin(), waymarks.end());
  Call<v1::FindRequest, v1::FindResponse>(
      std::move(to), request, patience.deadline,
      [count = waymarks.size(), done = std::move(done)](const Status& status,
                                                        const v1::FindResponse& response) {
        if (!status.ok()) return done(status);
        done(ToFoundHolders(response, count));
      },
      &v1::Peer::Stub::PrepareAsyncFind);
}

void GrpcPeerLinks::Match(const std::string& member, const PeerNamespace& ns,
                          std::span<const BlockKey> keys, PeerLease lease, const Patience& patience,
                          MatchDone done) {
  auto to = To(member);
  if (to == nullptr) return done(NoAddress(member));
  v1::PeerMatchRequest request;
  ToProto(options_.self, request.mutable_caller());
  request.set_fingerprint(std::string(ns.fingerprint.View()));
  request.set_bumps_digest(ns.bumps_digest);
  request.mutable_keys()->reserve(keys.size() * sizeof(BlockKey));
  for (const BlockKey& key : keys) request.mutable_keys()->append(key.View());
  request.set_no_lease(lease == PeerLease::kNone);
  Call<v1::PeerMatchRequest, v1::PeerMatchResponse>(
      std::move(to), request, patience.deadline,
      [done = std::move(done)](const Status& status, const v1::PeerMatchResponse& response) {
        if (!status.ok()) return done(status);
        done(ToPeerMatch(response));
      },
      &v1::Peer::Stub::PrepareAsyncMatch, patience.trace);
}

void GrpcPeerLinks::Read(const std::string& member, const PeerNamespace& ns, const BlockKey& key,
                         PeerBytes bytes, const Patience& patience, Duration silence,
                         BlockSink* sink, ReadDone done) {
  auto to = To(member);
  if (to == nullptr) return done(NoAddress(member), {});
  v1::PeerReadRequest request;
  ToProto(options_.self, request.mutable_caller());
  request.set_fingerprint(std::string(ns.fingerprint.View()));
  request.set_bumps_digest(ns.bumps_digest);
  request.set_key(std::string(key.View()));
  request.set_may_be_lent(bytes == PeerBytes::kMayBeLent);
  auto call = std::make_unique<BlockRead>(this, std::move(to), patience.deadline, silence, sink,
                                          std::move(done));
  if (!Begin(call.get())) return;
  call.release()->Start(request);
}

}  // namespace cairn::cache
