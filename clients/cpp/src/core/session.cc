#include "clients/cpp/src/core/session.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/log/log.h"

namespace cairn::client {
namespace {

constexpr Duration kOpenNamespace = std::chrono::seconds(2);  // Each.
constexpr Duration kFirstBackoff = std::chrono::milliseconds(50);
constexpr Duration kReopenInterval = std::chrono::seconds(1);
// A session that has ended unnoticed costs a call that fails, whereupon Look is called.
constexpr Duration kLook = std::chrono::milliseconds(50);
constexpr size_t kMaxNamespaces = 4096;

}  // namespace

Session::Session(const Options& options, const Clock* clock, MainTransport* node,
                 std::function<void()> on_open)
    : options_(options),
      clock_(clock),
      node_(node),
      link_(node->link()),
      on_open_(std::move(on_open)),
      random_(options.seed),
      backoff_(kFirstBackoff) {}

void Session::StepIfAlone() {
  if (options_.has_thread) return;
  for (;;) {
    Step();
    MutexLock lock(mu_);
    // A session that ended is connecting until the next step.
    if (state_ != State::kConnecting || stopping_) return;
  }
}

Result<SessionPtr> Session::Get(TimePoint deadline) {
  StepIfAlone();
  MutexLock lock(mu_);
  if (!changed_.WaitUntil(mu_, *clock_, deadline, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return state_ != State::kConnecting;
      })) {
    return Errorf(StatusCode::kDeadlineExceeded, "no session with the node in time");
  }
  if (state_ == State::kAway) {
    return Errorf(StatusCode::kUnavailable, "no session with the node: {}", ToString(why_away_));
  }
  return current_;
}

SessionPtr Session::Current() const {
  MutexLock lock(mu_);
  return state_ == State::kOpen ? current_ : nullptr;
}

bool Session::IsCurrent(const std::string& id) const {
  MutexLock lock(mu_);
  return state_ == State::kOpen && current_->id == id;
}

bool Session::open() const {
  MutexLock lock(mu_);
  return state_ == State::kOpen;
}

SessionPtr Session::Last() const {
  MutexLock lock(mu_);
  return current_;
}

NodeCondition Session::condition() const {
  MutexLock lock(mu_);
  if (state_ == State::kOpen && !draining_) return NodeCondition::kOpen;
  const bool first = state_ == State::kConnecting && times_opened_ == 0;
  return first ? NodeCondition::kOpening : NodeCondition::kLost;
}

uint64_t Session::times_opened() const {
  MutexLock lock(mu_);
  return times_opened_;
}

Status Session::Remember(const NamespaceSpec& spec, const NamespaceOptions& how) {
  MutexLock lock(mu_);
  if (namespaces_.size() >= kMaxNamespaces) {
    return Errorf(StatusCode::kResourceExhausted, "a client remembers at most {} namespaces",
                  kMaxNamespaces);
  }
  const auto [known, is_new] = namespaces_.try_emplace(Fingerprint(spec), spec, how);
  if (!is_new && how.block_life.count() != 0) known->second.how = how;
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
  uint64_t look = 0;
  {
    MutexLock lock(mu_);
    look = ++looks_wanted_;
    changed_.NotifyAll();
  }
  StepIfAlone();
  MutexLock lock(mu_);
  const auto ended = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return state_ != State::kOpen || current_->id != id;
  };
  // Not for long: while namespaces are opened again, nobody looks.
  const TimePoint soon = clock_->Now() + 2 * kLook;
  changed_.WaitUntil(
      mu_, *clock_, std::min(deadline, soon),
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended() || looks_done_ >= look; });
  return ended();
}

TimePoint Session::Step() {
  MutexLock step(step_mu_);
  State state = State::kConnecting;
  {
    MutexLock lock(mu_);
    if (stopping_) return TimePoint::max();
    if (state_ == State::kAway && clock_->Now() < retry_at_) return retry_at_;
    state = state_;
  }
  return state == State::kOpen ? LookAtSession() : TryToOpen();
}

TimePoint Session::TryToOpen() {
  attempt_began_ = clock_->Now();
  Result<SessionInfo> opened = link_.Open();
  if (!opened.ok()) return GoAway(opened.status());
  if (const Status namespaces = OpenNamespaces(); !namespaces.ok()) {
    (void)link_.Close();
    return GoAway(namespaces);
  }
  {
    MutexLock lock(mu_);
    current_ = std::make_shared<const SessionInfo>(*std::move(opened));
    state_ = State::kOpen;
    draining_ = false;
    next_reopen_ = {};
    ++times_opened_;
    log::Info("cache_session_open",
              {{"node", current_->node_id}, {"epoch", log::Num(current_->node_epoch)}});
    changed_.NotifyAll();
  }
  on_open_();
  return clock_->Now() + kLook;
}

TimePoint Session::LookAtSession() {
  bool reopen = false;
  uint64_t wanted = 0;
  bool thorough = false;
  {
    MutexLock lock(mu_);
    wanted = looks_wanted_;
    thorough = wanted > looks_done_;
    if (clock_->Now() >= next_reopen_) reopen = std::exchange(reopen_, false);
  }
  node_->Look();
  if (!link_.IsOpen(thorough)) return End();
  {
    MutexLock lock(mu_);
    draining_ = link_.IsDraining();
    looks_done_ = wanted;
    changed_.NotifyAll();
  }
  if (reopen) {
    if (const Status reopened = OpenNamespaces(); !reopened.ok()) {
      log::Warn("cache_reopen_failed", {{"reason", ToString(reopened)}});
    }
    MutexLock lock(mu_);
    next_reopen_ = clock_->Now() + kReopenInterval;
  }
  return clock_->Now() + kLook;
}

TimePoint Session::End() {
  {
    MutexLock lock(mu_);
    state_ = State::kConnecting;
    changed_.NotifyAll();
  }
  Status why = link_.Close();
  if (why.ok()) why = Errorf(StatusCode::kUnavailable, "the node ended the session");
  const TimePoint now = clock_->Now();
  // A session that ended as soon as it began is no restart: a node that throws its clients out must
  // not be asked without a pause.
  if (now - attempt_began_ <= kReopenInterval) return GoAway(why);
  // Probably a restart: the first attempt comes at once, and callers wait for it.
  backoff_ = kFirstBackoff;
  return now;
}

TimePoint Session::GoAway(const Status& why) {
  std::uniform_real_distribution<double> jitter(0.5, 1.0);
  const auto wait = std::chrono::duration_cast<Duration>(backoff_ * jitter(random_));
  backoff_ = std::min(backoff_ * 2, options_.max_backoff);
  MutexLock lock(mu_);
  if (stopping_) return TimePoint::max();
  if (state_ != State::kAway) log::Info("cache_away", {{"reason", ToString(why)}});
  state_ = State::kAway;
  why_away_ = why;
  retry_at_ = clock_->Now() + wait;
  changed_.NotifyAll();
  return retry_at_;
}

Status Session::OpenNamespaces() {
  std::vector<std::pair<Digest, KnownNamespace>> all;
  {
    MutexLock lock(mu_);
    all.assign(namespaces_.begin(), namespaces_.end());
  }
  for (const auto& [fingerprint, known] : all) {
    const NamespaceSpec& spec = known.spec;
    const auto opened = node_->OpenNamespace(spec, known.how, {}, clock_->Now() + kOpenNamespace);
    const Status& status = opened.status();
    if (status.code() == StatusCode::kUnavailable ||
        status.code() == StatusCode::kDeadlineExceeded) {
      return status;
    }
    // A namespace that the node refuses is a miss for those who use it, not for the others.
    if (!status.ok()) {
      log::Warn("cache_namespace_refused", {{"model", spec.model}, {"reason", ToString(status)}});
    }
    if (opened.ok() && opened->created) {
      MutexLock lock(mu_);
      created_.insert(fingerprint);
    }
  }
  return OkStatus();
}

bool Session::WaitForWork(TimePoint until) {
  {
    MutexLock lock(mu_);
    if (stopping_) return false;
    if (state_ == State::kOpen) {
      const bool may_reopen = clock_->Now() >= next_reopen_;
      changed_.WaitUntil(mu_, *clock_, until, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stopping_ || looks_wanted_ > looks_done_ || (reopen_ && may_reopen);
      });
      return !stopping_;
    }
  }
  // In short pieces, so that Stop is noticed.
  link_.Wait(std::min(until, clock_->Now() + kLook));
  MutexLock lock(mu_);
  return !stopping_;
}

void Session::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  link_.Cancel();
}

}  // namespace cairn::client
