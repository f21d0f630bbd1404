#include "tests/support/in_process_node.h"

#include <algorithm>
#include <utility>

#include "clients/cpp/src/core/transport_client.h"
#include "tests/support/in_process_transport.h"

namespace cairn::testing {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(100);
constexpr Duration kWaitStep = std::chrono::milliseconds(1);

}  // namespace

void InProcessNode::Start(cache::CacheEngine* engine) {
  const uint64_t epoch = engine->GetStats().node_epoch;
  MutexLock lock(mu_);
  engine_ = engine;
  epoch_ = epoch;
}

void InProcessNode::Die() {
  MutexLock lock(mu_);
  engine_ = nullptr;
  faults_.die_after_slices.reset();
  sessions_.clear();
  for (const auto& weak : watches_) {
    if (const auto watch = weak.lock()) watch->queue.reset();
  }
  watches_.clear();
}

void InProcessNode::SetFaults(const InProcessFaults& faults) {
  MutexLock lock(mu_);
  faults_ = faults;
}

void InProcessNode::SetPlace(client::NodePlace place) {
  MutexLock lock(mu_);
  place_ = std::move(place);
}

InProcessFaults InProcessNode::faults() const {
  MutexLock lock(mu_);
  return faults_;
}

std::unique_ptr<client::NodeClient> InProcessNode::NewClient(
    const InProcessClientOptions& options) {
  return std::make_unique<client::TransportClient>(
      client::TransportClient::Options{.breaker = options.breaker,
                                       .max_reconnect_backoff = options.max_reconnect_backoff,
                                       .namespaces = options.namespaces},
      clock_, nullptr, std::make_unique<InProcessTransport>(this, clock_, options.name));
}

void InProcessNode::RunAll() {
  while (work_ != nullptr && work_()) {
  }
}

void InProcessNode::Advance(Duration by) {
  do {
    const Duration step = std::min(by, kTick);
    clock_->Advance(step);
    by -= step;
    if (const auto engine = Engine(); engine.ok()) (*engine)->Tick();
    RunAll();
  } while (by > Duration::zero());
}

Result<cache::CacheEngine*> InProcessNode::Engine() const {
  MutexLock lock(mu_);
  if (engine_ == nullptr) return Errorf(StatusCode::kUnavailable, "the node is not there");
  return engine_;
}

Result<InProcessNode::Peer> InProcessNode::Find(const std::string& session) const {
  CAIRN_ASSIGN_OR_RETURN(cache::CacheEngine * engine, Engine());
  MutexLock lock(mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) {
    return Errorf(StatusCode::kNotFound, "session '{}' is not open", session);
  }
  return Peer{engine, it->second};
}

Result<client::SessionInfo> InProcessNode::OpenSession(const std::string& client,
                                                       TimePoint deadline) {
  CAIRN_RETURN_IF_ERROR(Arrive(deadline));
  CAIRN_ASSIGN_OR_RETURN(cache::CacheEngine * engine, Engine());
  if (faults().refuse_sessions) {
    return Errorf(StatusCode::kResourceExhausted, "the node takes no more sessions");
  }
  CAIRN_ASSIGN_OR_RETURN(const cache::SessionId session, engine->OpenSession(client));
  MutexLock lock(mu_);
  const std::string id = fmt::format("session-{}", next_session_++);
  sessions_.emplace(id, session);
  return client::SessionInfo{.id = id,
                             .node_id = place_.node_id,
                             .host = place_.host,
                             .zone = place_.zone,
                             .node_epoch = epoch_};
}

void InProcessNode::CloseSession(const std::string& session) {
  const auto peer = Find(session);
  if (!peer.ok()) return;
  {
    MutexLock lock(mu_);
    sessions_.erase(session);
  }
  peer->engine->CloseSession(peer->session);
}

Status InProcessNode::Arrive(TimePoint deadline) {
  const Duration left = deadline - clock_->Now();
  const Duration latency = faults().latency;
  if (std::min(latency, left) > Duration::zero()) Advance(std::min(latency, left));
  if (latency < left) return OkStatus();
  return Errorf(StatusCode::kDeadlineExceeded, "no answer from the node in time");
}

Status InProcessNode::Wait(TimePoint until) {
  if (work_ != nullptr && work_()) return OkStatus();
  const TimePoint now = clock_->Now();
  if (now >= until) {
    return Errorf(StatusCode::kDeadlineExceeded, "no answer from the node in time");
  }
  Advance(std::min(until - now, kWaitStep));
  return OkStatus();
}

std::shared_ptr<InProcessNode::Watch> InProcessNode::AddWatch(
    std::unique_ptr<cache::EventQueue> queue) {
  auto watch = std::make_shared<Watch>();
  watch->queue = std::move(queue);
  MutexLock lock(mu_);
  watch->node_epoch = epoch_;
  watches_.push_back(watch);
  return watch;
}

Result<std::vector<CacheEvent>> InProcessNode::NextEvent(Watch& watch) {
  MutexLock lock(mu_);
  if (watch.queue == nullptr) return Errorf(StatusCode::kUnavailable, "the node is gone");
  return watch.queue->Next(1, TimePoint());
}

}  // namespace cairn::testing
