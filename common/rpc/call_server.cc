#include "common/rpc/call_server.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

namespace cairn::rpc {
namespace {

size_t Pollers(size_t wanted) {
  if (wanted > 0) return wanted;
  return std::clamp<size_t>(std::thread::hardware_concurrency() / 2, 1, 16);
}

// Answers what has no reactor of its own.
class Refusal final : public CallReactor {
 public:
  Refusal(std::unique_ptr<RawCall> call, const grpc::Status& status)
      : CallReactor(std::move(call)) {
    Finish(status);
  }

 private:
  void OnDone() override { delete this; }
};

}  // namespace

RawCall::Place::~Place() { server->Gone(); }

void RawCall::Arrived(bool ok) {
  std::unique_ptr<RawCall> self(this);
  // Not a call: the server has shut down. Nor will Over be called.
  if (ok) place_.server->Take(std::move(self));
}

void RawCall::Opened(bool ok) { place_.server->Open(std::unique_ptr<RawCall>(this), ok); }

CallServer::CallServer(size_t pollers)
    : count_(Pollers(pollers)), busy_since_ns_(new std::atomic<int64_t>[count_]()) {}

CallServer::~CallServer() { Stop(); }

void CallServer::Add(const std::string& method, Opener opener) {
  methods_[method].open = std::move(opener);
}

void CallServer::AddStream(const std::string& method, StreamOpener opener) {
  methods_[method].open_stream = std::move(opener);
}

void CallServer::Register(grpc::ServerBuilder* builder) {
  builder->RegisterAsyncGenericService(&service_);
  for (size_t i = 0; i < count_; ++i) queues_.push_back(builder->AddCompletionQueue());
}

void CallServer::Start() {
  for (size_t i = 0; i < count_; ++i) {
    RequestCall(i);
    pollers_.emplace_back([this, i] { Poll(i); });
  }
}

void CallServer::Stop() {
  {
    MutexLock lock(mu_);
    if (std::exchange(stopping_, true)) return;
    // gRPC aborts when something is begun on a queue that was shut down.
    changed_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return calls_ == 0; });
  }
  for (const auto& queue : queues_) queue->Shutdown();
  for (std::thread& poller : pollers_) poller.join();
}

void CallServer::Gone() {
  MutexLock lock(mu_);
  // Under the lock: after it Stop may return, and this object go.
  if (--calls_ == 0) changed_.NotifyAll();
}

void CallServer::RequestCall(size_t poller) {
  {
    MutexLock lock(mu_);
    if (stopping_) return;
    ++calls_;
  }
  auto* call = new RawCall(this, poller);  // Comes back with its tag.
  call->context_.AsyncNotifyWhenDone(&call->over_);
  grpc::ServerCompletionQueue* const queue = queues_[poller].get();
  service_.RequestCall(&call->context_, &call->io_, queue, queue, &call->arrived_);
}

void CallServer::Poll(size_t poller) {
  pthread_setname_np(pthread_self(), "grpc");
  void* tag = nullptr;
  bool ok = false;
  std::atomic<int64_t>& busy_since_ns = busy_since_ns_[poller];
  while (queues_[poller]->Next(&tag, &ok)) {
    busy_since_ns.store(std::chrono::steady_clock::now().time_since_epoch().count(),
                        std::memory_order_relaxed);
    const auto* const event = static_cast<RawCall::Tag*>(tag);
    (event->call->*event->done)(ok);
    busy_since_ns.store(0, std::memory_order_relaxed);
  }
}

Duration CallServer::BusyFor() const {
  const int64_t now_ns = std::chrono::steady_clock::now().time_since_epoch().count();
  Duration longest(0);
  for (size_t i = 0; i < count_; ++i) {
    const int64_t since_ns = busy_since_ns_[i].load(std::memory_order_relaxed);
    if (since_ns != 0) longest = std::max(longest, Duration(now_ns - since_ns));
  }
  return longest;
}

void CallServer::Take(std::unique_ptr<RawCall> call) {
  RequestCall(call->poller_);
  const auto method = methods_.find(call->context_.method());
  if (method == methods_.end()) {
    const grpc::Status status(
        grpc::StatusCode::UNIMPLEMENTED,
        fmt::format("no method {}, only those of {}", call->context_.method(), Services()));
    new Refusal(std::move(call), status);
  } else if (method->second.open_stream) {
    method->second.open_stream(std::move(call));
  } else {
    RawCall* const raw = call.release();  // Comes back with its tag.
    raw->pending_.fetch_add(1, std::memory_order_relaxed);
    raw->io_.Read(&raw->request_, &raw->opened_);
  }
}

std::string CallServer::Services() const {
  std::set<std::string_view> services;  // The method is "/package.Service/Method".
  for (const auto& [method, code] : methods_) {
    services.insert(std::string_view(method).substr(1, method.rfind('/') - 1));
  }
  return fmt::format("{}", fmt::join(services, ", "));
}

void CallServer::Open(std::unique_ptr<RawCall> call, bool got_request) {
  RawCall* const raw = call.get();
  // It may have been cancelled before there was somebody to tell.
  const bool cancelled = raw->cancelled_;
  if (got_request) {
    const grpc::ByteBuffer request = std::exchange(raw->request_, grpc::ByteBuffer());
    methods_.at(raw->context_.method()).open(std::move(call), request);
    if (cancelled) raw->reactor_->OnCancel();
  } else {
    new Refusal(std::move(call), grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                                              "request: got none, expected one message"));
  }
  raw->Release();
}

}  // namespace cairn::rpc
