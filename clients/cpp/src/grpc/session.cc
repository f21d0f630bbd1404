#include "clients/cpp/src/grpc/session.h"

#include <algorithm>

#include "clients/cpp/src/grpc/channel.h"
#include "common/log/log.h"
#include "common/rpc/frames.h"
#include "common/rpc/status.h"
#include "protocol/wire/convert.h"

namespace cairn::client {
namespace {

constexpr auto kFirstEvent = std::chrono::seconds(3);     // A node that accepts but says nothing.
constexpr auto kOpenNamespace = std::chrono::seconds(2);  // Each.
constexpr auto kFirstBackoff = std::chrono::milliseconds(50);
constexpr auto kReopenInterval = std::chrono::seconds(1);
// A session that has ended unnoticed costs a call that fails, whereupon Look is called.
constexpr auto kLook = std::chrono::milliseconds(50);
// gRPC takes one event at a time, of any connection, and the one that tells may be the last.
constexpr int kRoundsWanted = 8;
constexpr size_t kMaxNamespaces = 4096;

}  // namespace

Session::Session(std::shared_ptr<grpc::Channel> channel, const Options& options,
                 std::function<void()> on_open, std::function<void()> on_look)
    : channel_(channel),
      stub_(v1::Cache::NewStub(channel)),
      options_(options),
      on_open_(std::move(on_open)),
      on_look_(std::move(on_look)),
      streams_(std::move(channel)),
      random_(options.seed) {
  thread_ = std::thread([this] { Run(); });
}

Session::~Session() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    if (stream_ != nullptr) stream_->Cancel();
    changed_.NotifyAll();
  }
  thread_.join();
}

Result<Session::Current> Session::Get(TimePoint deadline) {
  MutexLock lock(mu_);
  if (!changed_.WaitUntil(mu_, deadline, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return state_ != State::kConnecting;
      })) {
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

bool Session::TakeCreated(const Digest& fingerprint) {
  MutexLock lock(mu_);
  return created_.erase(fingerprint) > 0;
}

void Session::ReopenNamespaces() {
  MutexLock lock(mu_);
  reopen_ = true;
  changed_.NotifyAll();
}

void Session::Look() {
  MutexLock lock(mu_);
  ++looks_wanted_;
  changed_.NotifyAll();
}

bool Session::HasEnded(const std::string& id, TimePoint deadline) {
  MutexLock lock(mu_);
  const auto ended = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return state_ != State::kOpen || current_.id != id;
  };
  const uint64_t look = ++looks_wanted_;
  changed_.NotifyAll();
  // Not for long: while namespaces are opened again, nobody looks.
  const TimePoint soon = std::chrono::steady_clock::now() + 2 * kLook;
  changed_.WaitUntil(mu_, std::min(deadline, soon), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ended() || looks_done_ >= look;
  });
  return ended();
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
  while (true) {
    {
      MutexLock lock(mu_);
      if (stopping_) return false;
    }
    const TimePoint now = std::chrono::steady_clock::now();
    if (now >= until) return true;
    // Inside of gRPC: a connection comes to be only while somebody waits there.
    channel_->WaitForStateChange(channel_->GetState(/*try_to_connect=*/true),
                                 WallDeadline(std::min<TimePoint>(until, now + kLook)));
  }
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
  RawCall stream(&streams_, "/cairn.v1.Cache/OpenSession", std::nullopt, {});
  {
    MutexLock lock(mu_);
    if (stopping_) return Errorf(StatusCode::kCancelled, "the client ends");
    stream_ = &stream;
  }
  Result<v1::SessionEvent> first = Open(stream);
  if (first.ok()) {
    if (const Status namespaces = OpenNamespaces(); !namespaces.ok()) first = namespaces;
  }
  Status ended = first.status();
  if (first.ok()) {
    *opened = true;
    {
      MutexLock lock(mu_);
      current_ = {.id = first->session_id(),
                  .max_frame_bytes = first->max_frame_bytes(),
                  .local = std::make_shared<const local::Offer>(
                      local::Offer{.session = first->session_id(),
                                   .socket = first->local_socket(),
                                   .token = first->local_token(),
                                   .node_epoch = first->node_epoch()})};
      state_ = State::kOpen;
      ++times_opened_;
      log::Info("cache_session_open",
                {{"node", first->node_id()}, {"epoch", log::Num(first->node_epoch())}});
      changed_.NotifyAll();
    }
    on_open_();
    KeepOpen(stream);
    {
      MutexLock lock(mu_);
      state_ = State::kConnecting;
      changed_.NotifyAll();
    }
    ended = stream.Finish(std::chrono::steady_clock::now() + kFirstEvent);
    if (ended.ok()) ended = Errorf(StatusCode::kUnavailable, "the node ended the session");
  }
  MutexLock lock(mu_);
  stream_ = nullptr;
  return ended;
}

Result<v1::SessionEvent> Session::Open(RawCall& stream) {
  v1::OpenSessionRequest request;
  request.set_client_name(options_.client_name);
  stream.Send(rpc::ToFrame(request));
  const TimePoint deadline = std::chrono::steady_clock::now() + kFirstEvent;
  grpc::ByteBuffer frame;
  switch (stream.Read(&frame, /*ahead=*/true, deadline)) {
    case RawCall::Outcome::kDone:
      break;
    case RawCall::Outcome::kTimeout:
      return Errorf(StatusCode::kDeadlineExceeded, "the node did not open a session in time");
    case RawCall::Outcome::kClosed: {
      const Status status = stream.Finish(deadline);
      return status.ok() ? Errorf(StatusCode::kUnavailable, "the node ended the session") : status;
    }
  }
  v1::SessionEvent event;
  if (!rpc::FromFrame(frame, &event) || event.session_id().empty()) {
    return Errorf(StatusCode::kInternal, "the node opened a session without an id");
  }
  return event;
}

void Session::KeepOpen(RawCall& stream) {
  // Calls that find their namespace missing again do not make this a loop without a pause.
  TimePoint next_reopen{};
  while (true) {
    bool reopen = false;
    uint64_t wanted = 0;
    int rounds = 1;
    const TimePoint now = std::chrono::steady_clock::now();
    {
      MutexLock lock(mu_);
      changed_.WaitUntil(mu_, now + kLook, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stopping_ || looks_wanted_ > looks_done_ || (reopen_ && now >= next_reopen);
      });
      if (stopping_) return;
      wanted = looks_wanted_;
      if (wanted > looks_done_) rounds = kRoundsWanted;
      if (now >= next_reopen) reopen = std::exchange(reopen_, false);
    }
    on_look_();
    for (int round = 0; round < rounds; ++round) {
      // What the node says after the first event tells only that it lives.
      grpc::ByteBuffer beat;
      if (stream.Read(&beat, /*ahead=*/true, TimePoint()) == RawCall::Outcome::kClosed) return;
    }
    {
      MutexLock lock(mu_);
      looks_done_ = wanted;
      changed_.NotifyAll();
    }
    if (!reopen) continue;
    if (const Status reopened = OpenNamespaces(); !reopened.ok()) {
      log::Warn("cache_reopen_failed", {{"reason", ToString(reopened)}});
    }
    next_reopen = std::chrono::steady_clock::now() + kReopenInterval;
  }
}

Status Session::OpenNamespaces() {
  std::vector<std::pair<Digest, NamespaceSpec>> specs;
  {
    MutexLock lock(mu_);
    specs.assign(namespaces_.begin(), namespaces_.end());
  }
  for (const auto& [fingerprint, spec] : specs) {
    grpc::ClientContext context;
    Prepare(context, std::chrono::steady_clock::now() + kOpenNamespace, {});
    v1::OpenNamespaceRequest request;
    v1::OpenNamespaceResponse response;
    wire::ToProto(spec, request.mutable_spec());
    const Status status = rpc::FromGrpc(stub_->OpenNamespace(&context, request, &response));
    if (status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDeadlineExceeded)
      return status;
    // A namespace that the node refuses is a miss for those who use it, not for the others.
    if (!status.ok())
      log::Warn("cache_namespace_refused", {{"model", spec.model}, {"reason", ToString(status)}});
    if (status.ok() && response.created()) {
      MutexLock lock(mu_);
      created_.insert(fingerprint);
    }
  }
  return OkStatus();
}

}  // namespace cairn::client
