#include "clients/cpp/src/local/local_path.h"

#include <algorithm>
#include <utility>

#include "common/log/log.h"

namespace cairn::client::local {
namespace {

constexpr Duration kOpen = std::chrono::milliseconds(500);  // A handshake without an answer.
constexpr Duration kMaxPause = std::chrono::seconds(30);

}  // namespace

LocalPath::~LocalPath() {
  Old old;
  {
    MutexLock lock(mu_);
    old = Forget();
  }
  if (old.session != nullptr) old.session->Close();
}

void LocalPath::Remember(const Digest& fingerprint, std::string_view tenant) {
  MutexLock lock(mu_);
  if (tenant_.empty()) tenant_ = tenant;
  if (tenant_ == tenant) namespaces_.insert(fingerprint);
}

LocalPath::Old LocalPath::Forget() {
  return {std::exchange(session_, nullptr), std::exchange(leases_, {})};
}

void LocalPath::SetReason(std::string reason) {
  if (reason == reason_) return;
  reason_ = std::move(reason);
  if (!reason_.empty()) log::Info("cache_local_path_closed", {{"reason", reason_}});
}

std::shared_ptr<LocalSession> LocalPath::Get(const SessionPtr& offer, const Digest& fingerprint,
                                             TimePoint deadline) {
  Old old;  // Its leases give themselves back, which must not happen under the lock.
  LocalSession::Options open;
  {
    MutexLock lock(mu_);
    if (offer != offer_) {
      old = Forget();
      offer_ = offer;
      retry_at_ = {};
      pause_ = options_.first_pause;
    }
    if (offer->local_socket.empty()) {
      SetReason("the node offers no same-node sessions");
      return nullptr;
    }
    if (!namespaces_.contains(fingerprint)) return nullptr;
    if (session_ != nullptr) {
      const Status broken = session_->broken();
      if (broken.ok()) return session_;
      SetReason(std::string(Message(broken)));
      old = Forget();
      retry_at_ = clock_->Now() + pause_;
      return nullptr;
    }
    if (opening_ || clock_->Now() < retry_at_) return nullptr;
    opening_ = true;
    open = {.socket = offer->local_socket,
            .token = offer->local_token,
            .tenant = tenant_,
            .client = options_.client,
            .node_epoch = offer->node_epoch,
            .spin = options_.spin,
            .devices = options_.devices};
  }
  auto session = LocalSession::Open(open, clock_, std::min(deadline, clock_->Now() + kOpen));
  MutexLock lock(mu_);
  opening_ = false;
  if (!session.ok()) {
    SetReason(std::string(Message(session.status())));
    retry_at_ = clock_->Now() + pause_;
    pause_ = std::min(pause_ * 2, kMaxPause);
    return nullptr;
  }
  if (offer != offer_) return nullptr;  // The node restarted meanwhile.
  SetReason({});
  pause_ = options_.first_pause;
  ++sessions_;
  session_ = std::move(*session);
  log::Info("cache_local_path_open", {{"socket", open.socket}});
  return session_;
}

void LocalPath::CheckAlive() {
  Old old;
  MutexLock lock(mu_);
  if (session_ == nullptr || session_->Alive()) return;
  SetReason(std::string(Message(session_->broken())));
  old = Forget();
}

Status LocalPath::Unavailable() const {
  MutexLock lock(mu_);
  return Errorf(StatusCode::kUnavailable, "no same-node session: {}",
                reason_.empty() ? "the namespace is another tenant's, or was not opened" : reason_);
}

void LocalPath::Keep(std::shared_ptr<LeasePin> pin) {
  std::shared_ptr<LeasePin> late;  // Given back outside the lock.
  MutexLock lock(mu_);
  if (session_ != pin->session()) {
    late = std::move(pin);
    return;
  }
  const uint64_t lease = pin->lease();
  late = std::exchange(leases_[lease], std::move(pin));
}

std::shared_ptr<LeasePin> LocalPath::Find(const LeaseInfo& lease) const {
  MutexLock lock(mu_);
  if (offer_ == nullptr || offer_->id != lease.session) return nullptr;
  const auto it = leases_.find(lease.id);
  return it == leases_.end() ? nullptr : it->second;
}

bool LocalPath::Drop(const LeaseInfo& lease) {
  std::shared_ptr<LeasePin> pin;
  MutexLock lock(mu_);
  if (offer_ == nullptr || offer_->id != lease.session) return false;
  const auto it = leases_.find(lease.id);
  if (it == leases_.end()) return false;
  pin = std::move(it->second);
  leases_.erase(it);
  return true;
}

NearTransport::State LocalPath::GetState() const {
  MutexLock lock(mu_);
  const bool open = session_ != nullptr && session_->broken().ok();
  return {open, open ? std::string() : reason_, sessions_};
}

}  // namespace cairn::client::local
