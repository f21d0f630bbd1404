#include "clients/cpp/src/session.h"

#include <algorithm>

#include "clients/cpp/src/channel.h"
#include "clients/cpp/wire/convert.h"
#include "clients/cpp/wire/status.h"
#include "services/common/log/log.h"

namespace cairn::client {
namespace {

constexpr auto kFirstEvent = std::chrono::seconds(3);     // A node that accepts but says nothing.
constexpr auto kOpenNamespace = std::chrono::seconds(2);  // Each.
constexpr auto kFirstBackoff = std::chrono::milliseconds(50);
constexpr auto kReopenInterval = std::chrono::seconds(1);
constexpr size_t kMaxNamespaces = 4096;

}  // namespace

// The stream of one session. Its callbacks run on gRPC's threads; everything they share is under
// the session's mutex.
class Session::Stream final : public grpc::ClientReadReactor<v1::SessionEvent> {
 public:
  Stream(Session& session, v1::Cache::Stub& stub) : session_(session) {
    request_.set_client_name(session.options_.client_name);
    stub.async()->OpenSession(&context_, &request_, this);
    StartRead(&event_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    {
      MutexLock lock(session_.mu_);
      if (!first_) first_ = event_;
      session_.changed_.NotifyAll();
    }
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override {
    // Notified under the lock: after it the session may destroy this object.
    MutexLock lock(session_.mu_);
    status_ = wire::FromGrpc(status);
    done_ = true;
    session_.changed_.NotifyAll();
  }

  // Under the session's mutex.
  const std::optional<v1::SessionEvent>& first() const { return first_; }
  bool done() const { return done_; }
  const Status& status() const { return status_; }

 private:
  Session& session_;
  grpc::ClientContext context_;
  v1::OpenSessionRequest request_;
  v1::SessionEvent event_;
  std::optional<v1::SessionEvent> first_;
  bool done_ = false;
  Status status_;
};

Session::Session(std::shared_ptr<grpc::Channel> channel, const Options& options,
                 std::function<void()> on_open)
    : stub_(v1::Cache::NewStub(channel)),
      options_(options),
      on_open_(std::move(on_open)),
      random_(options.seed) {
  thread_ = std::thread([this] { Run(); });
}

Session::~Session() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

Result<Session::Current> Session::Get(TimePoint deadline) {
  MutexLock lock(mu_);
  if (!changed_.WaitUntil(mu_, deadline, [this] { return state_ != State::kConnecting; })) {
    return Errorf(StatusCode::kDeadlineExceeded, "no session with the node in time");
  }
  if (state_ == State::kAway) {
    return Errorf(StatusCode::kUnavailable, "no session with the node: {}", ToString(why_away_));
  }
  return current_;
}

bool Session::IsCurrent(const std::string& id) const {
  MutexLock lock(mu_);
  return state_ == State::kOpen && current_.id == id;
}

bool Session::open() const {
  MutexLock lock(mu_);
  return state_ == State::kOpen;
}

uint64_t Session::times_opened() const {
  MutexLock lock(mu_);
  return times_opened_;
}

Status Session::Remember(const NamespaceSpec& spec) {
  MutexLock lock(mu_);
  if (namespaces_.size() >= kMaxNamespaces) {
    return Errorf(StatusCode::kResourceExhausted, "a client remembers at most {} namespaces",
                  kMaxNamespaces);
  }
  namespaces_.try_emplace(Fingerprint(spec), spec);
  return OkStatus();
}

void Session::ReopenNamespaces() {
  MutexLock lock(mu_);
  reopen_ = true;
  changed_.NotifyAll();
}

void Session::SetAway(const Status& why) {
  MutexLock lock(mu_);
  if (state_ != State::kAway) log::Info("cache_away", {{"reason", ToString(why)}});
  state_ = State::kAway;
  why_away_ = why;
  changed_.NotifyAll();
}

bool Session::WaitBackoff(Duration wait) {
  std::uniform_real_distribution<double> jitter(0.5, 1.0);
  const auto until = std::chrono::steady_clock::now() +
                     std::chrono::duration_cast<Duration>(wait * jitter(random_));
  MutexLock lock(mu_);
  changed_.WaitUntil(mu_, until, [this] { return stopping_; });
  return !stopping_;
}

void Session::Run() {
  Duration backoff = kFirstBackoff;
  while (true) {
    bool opened = false;
    const auto begin = std::chrono::steady_clock::now();
    const Status ended = RunOnce(&opened);
    const bool lasted = std::chrono::steady_clock::now() - begin > kReopenInterval;
    {
      MutexLock lock(mu_);
      if (stopping_) return;
    }
    if (opened && lasted) {
      // Probably a restart: the first attempt comes at once, and callers wait for it. Not after a
      // session that ended as soon as it began, or a node that throws its clients out would be
      // asked without a pause.
      backoff = kFirstBackoff;
      continue;
    }
    SetAway(ended);
    if (!WaitBackoff(backoff)) return;
    backoff = std::min<Duration>(backoff * 2, options_.max_backoff);
  }
}

Status Session::RunOnce(bool* opened) {
  Stream stream(*this, *stub_);
  Status result;
  {
    MutexLock lock(mu_);
    const auto deadline = std::chrono::steady_clock::now() + kFirstEvent;
    changed_.WaitUntil(mu_, deadline,
                       [&] { return stopping_ || stream.done() || stream.first().has_value(); });
    if (!stream.first().has_value() && !stream.done()) {
      result = Errorf(StatusCode::kDeadlineExceeded, "the node did not open a session in time");
    } else if (stream.first().has_value() && stream.first()->session_id().empty()) {
      result = Errorf(StatusCode::kInternal, "the node opened a session without an id");
    }
  }
  const auto usable = [&] {
    MutexLock lock(mu_);
    return result.ok() && stream.first().has_value() && !stream.done() && !stopping_;
  };
  if (usable()) result = OpenNamespaces();
  if (usable()) {
    *opened = true;
    {
      MutexLock lock(mu_);
      current_ = {.id = stream.first()->session_id(),
                  .max_frame_bytes = stream.first()->max_frame_bytes(),
                  .local = std::make_shared<const local::Offer>(
                      local::Offer{.session = stream.first()->session_id(),
                                   .socket = stream.first()->local_socket(),
                                   .token = stream.first()->local_token(),
                                   .node_epoch = stream.first()->node_epoch()})};
      state_ = State::kOpen;
      ++times_opened_;
      log::Info("cache_session_open", {{"node", stream.first()->node_id()},
                                       {"epoch", log::Num(stream.first()->node_epoch())}});
      changed_.NotifyAll();
    }
    on_open_();
    while (true) {
      {
        MutexLock lock(mu_);
        changed_.Wait(mu_, [&] { return stopping_ || stream.done() || reopen_; });
        if (stopping_ || stream.done()) break;
        reopen_ = false;
      }
      if (const Status reopened = OpenNamespaces(); !reopened.ok()) {
        log::Warn("cache_reopen_failed", {{"reason", ToString(reopened)}});
      }
      // Calls that find their namespace missing again do not make this a loop without a pause.
      if (!WaitBackoff(kReopenInterval)) break;
    }
    MutexLock lock(mu_);
    state_ = State::kConnecting;
    changed_.NotifyAll();
  }
  stream.Cancel();
  MutexLock lock(mu_);
  changed_.Wait(mu_, [&] { return stream.done(); });
  if (!result.ok()) return result;
  return stream.status().ok() ? Errorf(StatusCode::kUnavailable, "the node ended the session")
                              : stream.status();
}

Status Session::OpenNamespaces() {
  std::vector<NamespaceSpec> specs;
  {
    MutexLock lock(mu_);
    for (const auto& [fingerprint, spec] : namespaces_) specs.push_back(spec);
  }
  for (const NamespaceSpec& spec : specs) {
    grpc::ClientContext context;
    Prepare(context, std::chrono::steady_clock::now() + kOpenNamespace, {});
    v1::OpenNamespaceRequest request;
    v1::OpenNamespaceResponse response;
    wire::ToProto(spec, request.mutable_spec());
    const Status status = wire::FromGrpc(stub_->OpenNamespace(&context, request, &response));
    if (status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDeadlineExceeded)
      return status;
    // A namespace that the node refuses is a miss for those who use it, not for the others.
    if (!status.ok())
      log::Warn("cache_namespace_refused", {{"model", spec.model}, {"reason", ToString(status)}});
  }
  return OkStatus();
}

}  // namespace cairn::client
