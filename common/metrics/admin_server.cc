#include "common/metrics/admin_server.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/concurrency/executor.h"
#include "common/concurrency/mutex.h"
#include "common/http/client.h"
#include "common/http/server.h"
#include "common/net/address.h"
#include "common/net/tls.h"

namespace cairn::metrics {
namespace {

constexpr std::string_view kStateNames[] = {"starting", "ready", "draining"};
constexpr uint32_t kMaxHeadBytes = 8192;
constexpr uint64_t kMaxBodyBytes = 8192;  // Limit for the body of a request. Nobody reads it.
constexpr Duration kAnswerTimeout = std::chrono::seconds(10);
constexpr uint64_t kMaxAnswerBytes = 16 << 20;  // That HttpGet takes.

}  // namespace

struct Health::Impl {
  const Clock* clock;
  const Duration max_silence;
  std::atomic<int64_t> last_beat_ns;
  mutable Mutex mu;
  NodeState state ABSL_GUARDED_BY(mu) = NodeState::kStarting;
  std::string reason ABSL_GUARDED_BY(mu) = "starting";
  struct Watched {
    std::string what;
    std::function<Duration()> busy_for;
  };
  std::vector<Watched> watched ABSL_GUARDED_BY(mu);
};

Health::Health(const Clock* clock, Duration max_silence)
    : impl_(new Impl{.clock = clock,
                     .max_silence = max_silence,
                     .last_beat_ns = clock->Now().time_since_epoch().count(),
                     .mu = {},
                     .watched = {}}) {}
Health::~Health() = default;

void Health::SetState(NodeState state, const std::string& reason) {
  MutexLock lock(impl_->mu);
  impl_->state = state;
  impl_->reason = reason;
}

NodeState Health::state() const {
  MutexLock lock(impl_->mu);
  return impl_->state;
}

std::string Health::reason() const {
  MutexLock lock(impl_->mu);
  return impl_->reason;
}

void Health::Beat() {
  impl_->last_beat_ns.store(impl_->clock->Now().time_since_epoch().count(),
                            std::memory_order_relaxed);
}

void Health::Watch(std::string what, std::function<Duration()> busy_for) {
  MutexLock lock(impl_->mu);
  impl_->watched.push_back({std::move(what), std::move(busy_for)});
}

std::string Health::Silent() const {
  const int64_t silence_ns = impl_->clock->Now().time_since_epoch().count() -
                             impl_->last_beat_ns.load(std::memory_order_relaxed);
  if (Duration(silence_ns) > impl_->max_silence) return "the main loop does not run";
  MutexLock lock(impl_->mu);
  for (const Impl::Watched& watched : impl_->watched) {
    const Duration busy = watched.busy_for();
    if (busy > impl_->max_silence) {
      return fmt::format("{} is stuck for {} s", watched.what,
                         std::chrono::duration_cast<std::chrono::seconds>(busy).count());
    }
  }
  return "";
}

void Health::Export(Registry* registry) const {
  registry->AddCollector([this](Sink& sink) {
    const NodeState now = state();
    for (const NodeState s : {NodeState::kStarting, NodeState::kReady, NodeState::kDraining}) {
      sink.Gauge("cairn_node_state", "1 for the state that the node is in, 0 for the others.",
                 {{"state", std::string(kStateNames[static_cast<size_t>(s)])}}, s == now ? 1 : 0);
    }
  });
}

namespace {

http::Response PlainAnswer(int status, std::string body) {
  return {.status = status, .content_type = "text/plain; charset=utf-8", .body = std::move(body)};
}

// Scrapes that are being made, or whose reader has not taken them yet. Thread-safe.
class Scrapes {
 public:
  explicit Scrapes(const Registry* registry) : registry_(*registry) {}

  // Answers 503 if all places are taken by scrapes that are being made.
  void Answer(std::shared_ptr<http::Responder> responder) {
    std::shared_ptr<http::Responder> idle;
    const uint64_t id = TakePlace(responder, &idle);
    if (idle != nullptr) idle->Abort();
    if (id == 0) return responder->Send(Busy());
    // Destroyed when the answer has left, or the connection has ended.
    std::shared_ptr<void> place(nullptr, [this, id](void*) {
      MutexLock lock(mu_);
      places_.erase(id);
    });
    responder->OnAbort([place = std::move(place)] {});
    const Status posted = thread_.Post([this, id, responder] {
      http::Response made = {.content_type = "text/plain; version=0.0.4; charset=utf-8",
                             .body = registry_.Scrape()};
      {
        MutexLock lock(mu_);
        if (const auto it = places_.find(id); it != places_.end()) it->second.made = true;
      }
      responder->Send(std::move(made));
    });
    if (!posted.ok()) responder->Send(Busy());
  }
  // Nothing is answered any more.
  void Stop() { thread_.Stop(); }

 private:
  struct Place {
    std::shared_ptr<http::Responder> responder;
    bool made = false;
  };

  static http::Response Busy() { return PlainAnswer(503, "too many requests at a time\n"); }
  // 0: there is none. `idle`: its reader does not take its answer, so it gives way.
  uint64_t TakePlace(const std::shared_ptr<http::Responder>& responder,
                     std::shared_ptr<http::Responder>* idle) {
    MutexLock lock(mu_);
    if (places_.size() >= AdminServer::kScrapes) {
      const auto made = std::find_if(places_.begin(), places_.end(),
                                     [](const auto& place) { return place.second.made; });
      if (made == places_.end()) return 0;
      *idle = std::move(made->second.responder);
      places_.erase(made);
    }
    places_.emplace(++last_id_, Place{.responder = responder});
    return last_id_;
  }

  const Registry& registry_;
  Mutex mu_;
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, Place> places_ ABSL_GUARDED_BY(mu_);
  ThreadPool thread_{{.name = "scrape", .threads = 1, .queue_capacity = AdminServer::kScrapes}};
};

// Gets one answer.
class Getter final : public http::ResponseObserver {
 public:
  void OnHead(const http::ResponseHead& head) override {
    MutexLock lock(mu_);
    status_ = head.status;
  }
  bool OnBody(std::string_view bytes) override {
    MutexLock lock(mu_);
    body_ += bytes;
    return true;
  }
  void OnEnd() override { End(OkStatus()); }
  void OnError(const Status& status) override { End(status); }

  // Waits. nullopt: there is no whole answer at the deadline.
  std::optional<Status> Wait(TimePoint deadline) {
    MutexLock lock(mu_);
    changed_.WaitUntil(mu_, deadline,
                       [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_.has_value(); });
    return ended_;
  }
  // After Wait said OK.
  int status() const {
    MutexLock lock(mu_);
    return status_;
  }
  std::string body() const {
    MutexLock lock(mu_);
    return body_;
  }

 private:
  void End(const Status& status) {
    MutexLock lock(mu_);
    ended_ = status;
    changed_.NotifyAll();
  }

  mutable Mutex mu_;
  CondVar changed_;
  int status_ ABSL_GUARDED_BY(mu_) = 0;
  std::string body_ ABSL_GUARDED_BY(mu_);
  std::optional<Status> ended_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

struct AdminServer::Impl final : http::Handler {
  Impl(const Registry* registry, const Health* state) : health(*state), scrapes(registry) {}
  ~Impl() override {
    server.reset();
    scrapes.Stop();
  }

  void Handle(http::Request request, std::shared_ptr<http::Responder> responder) override {
    if (request.method != "GET") return responder->Send(PlainAnswer(405, "only GET\n"));
    if (request.path == "/metrics") return scrapes.Answer(std::move(responder));
    responder->Send(AnswerTo(request.path));
  }
  http::Response Refuse(int status, const std::string&) override {
    return PlainAnswer(status, "not a request for this port\n");
  }
  http::Response AnswerTo(const std::string& path) const {
    if (path == "/livez") {
      const std::string silent = health.Silent();
      return silent.empty() ? PlainAnswer(200, "alive\n") : PlainAnswer(503, silent + "\n");
    }
    const NodeState state = health.state();
    if (path == "/startupz") {
      return state != NodeState::kStarting ? PlainAnswer(200, "started\n")
                                           : PlainAnswer(503, "starting\n");
    }
    if (path == "/readyz") {
      const std::string reason = health.reason();
      if (state != NodeState::kReady) return PlainAnswer(503, "not ready: " + reason + "\n");
      return PlainAnswer(200, reason.empty() ? "ready\n" : "ready, degraded: " + reason + "\n");
    }
    return PlainAnswer(404, "no such page\n");
  }

  const Health& health;
  Scrapes scrapes;
  std::unique_ptr<http::Server> server;
};

AdminServer::AdminServer() = default;

Result<std::unique_ptr<AdminServer>> AdminServer::Start(const Options& options,
                                                        const Registry* registry,
                                                        const Health* health) {
  std::unique_ptr<AdminServer> server(new AdminServer());
  server->impl_ = std::make_unique<Impl>(registry, health);
  net::TlsOptions tls;
  tls.allow_plaintext_beyond_loopback = true;
  CAIRN_ASSIGN_OR_RETURN(
      server->impl_->server,
      http::Server::Start({.listen = options.listen,
                           .field = "admin.listen",
                           .tls = tls,
                           .threads = 1,
                           .max_connections = options.max_connections,
                           .max_head_bytes = kMaxHeadBytes,
                           .max_body_bytes = kMaxBodyBytes,
                           .all_body_bytes = options.max_connections * kMaxBodyBytes,
                           .request_timeout = options.request_timeout,
                           .write_timeout = kAnswerTimeout,
                           .keep_alive = false},
                          server->impl_.get()));
  return server;
}

AdminServer::~AdminServer() = default;

const std::string& AdminServer::address() const { return impl_->server->address(); }

Result<HttpAnswer> HttpAsk(const std::string& address, const std::string& path, Duration timeout) {
  const TimePoint deadline = SteadyClock::Get().Now() + timeout;
  CAIRN_ASSIGN_OR_RETURN(const net::ListenAddress to, net::ParseListenAddress(address, "address"));
  CAIRN_ASSIGN_OR_RETURN(const auto client,
                         http::MakeClient({.tls = false, .connect_timeout = timeout}));
  const auto getter = std::make_shared<Getter>();
  client->Send({.host = to.host, .port = to.port},
               {.target = path, .max_body_bytes = kMaxAnswerBytes, .silence = timeout}, getter);
  const std::optional<Status> ended = getter->Wait(deadline);
  if (!ended) return Errorf(StatusCode::kUnavailable, "{}{}: no answer in time", address, path);
  if (!ended->ok()) {
    return Errorf(StatusCode::kUnavailable, "{}{}: {}", address, path, Message(*ended));
  }
  return HttpAnswer{.status = getter->status(), .body = getter->body()};
}

Result<std::string> HttpGet(const std::string& address, const std::string& path, Duration timeout) {
  CAIRN_ASSIGN_OR_RETURN(HttpAnswer answer, HttpAsk(address, path, timeout));
  if (answer.status == 200) return std::move(answer.body);
  return Errorf(StatusCode::kUnavailable, "{}{}: {}: {}", address, path, answer.status,
                answer.body);
}

}  // namespace cairn::metrics
