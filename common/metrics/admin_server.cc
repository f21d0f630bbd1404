#include "common/metrics/admin_server.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "common/concurrency/mutex.h"
#include "common/metrics/http_server.h"

namespace cairn::metrics {
namespace {

constexpr std::string_view kStateNames[] = {"starting", "ready", "draining"};

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

struct AdminServer::Impl {
  std::unique_ptr<HttpServer> http;
};

AdminServer::AdminServer() : impl_(std::make_unique<Impl>()) {}

Result<std::unique_ptr<AdminServer>> AdminServer::Start(const std::string& listen,
                                                        const Registry* registry,
                                                        const Health* health) {
  const size_t colon = listen.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == listen.size() ||
      listen.find_first_not_of("0123456789", colon + 1) != std::string::npos ||
      listen.find_first_of(",+ ") != std::string::npos) {
    return InvalidArgument("admin.listen: got '{}', expected an address such as 127.0.0.1:7401",
                           listen);
  }
  const auto live = [health] {
    const std::string silent = health->Silent();
    return silent.empty() ? PlainAnswer(200, "alive\n") : PlainAnswer(503, silent + "\n");
  };
  const auto started = [health] {
    return health->state() != NodeState::kStarting ? PlainAnswer(200, "started\n")
                                                   : PlainAnswer(503, "starting\n");
  };
  const auto ready = [health] {
    const std::string reason = health->reason();
    if (health->state() != NodeState::kReady)
      return PlainAnswer(503, "not ready: " + reason + "\n");
    return PlainAnswer(200, reason.empty() ? "ready\n" : "ready, degraded: " + reason + "\n");
  };
  const auto scrape = [registry] {
    return HttpAnswer{.type = "text/plain; version=0.0.4; charset=utf-8",
                      .body = registry->Scrape()};
  };
  std::unique_ptr<AdminServer> server(new AdminServer());
  CAIRN_ASSIGN_OR_RETURN(server->impl_->http,
                         HttpServer::Start({.listen = listen}, {{"/livez", live},
                                                                {"/startupz", started},
                                                                {"/readyz", ready},
                                                                {"/metrics", scrape, true}}));
  return server;
}

AdminServer::~AdminServer() = default;

const std::string& AdminServer::address() const { return impl_->http->address(); }

Result<std::string> HttpGet(const std::string& address, const std::string& path, Duration timeout) {
  const TimePoint deadline = SteadyClock::Get().Now() + timeout;
  const auto left_ms = [&] {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - SteadyClock::Get().Now());
    return static_cast<int>(std::max<int64_t>(0, left.count()));
  };
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos)
    return InvalidArgument("address: got '{}', expected host:port", address);
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0) {
    return Errorf(StatusCode::kUnavailable, "{}: no such address", address);
  }
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  int rc = fd < 0 ? -1 : connect(fd, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  if (fd < 0) return Errorf(StatusCode::kUnavailable, "{}: {}", address, std::strerror(errno));
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  } closer{fd};
  const auto wait = [&](short events) {
    pollfd p{fd, events, 0};
    return poll(&p, 1, left_ms()) == 1;
  };
  if (rc != 0 && errno == EINPROGRESS && wait(POLLOUT)) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    rc = error == 0 ? 0 : -1;
  }
  if (rc != 0) return Errorf(StatusCode::kUnavailable, "{}: cannot connect", address);
  const std::string request =
      fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", path, address);
  if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return Errorf(StatusCode::kUnavailable, "{}: cannot send", address);
  }
  std::string answer;
  char buffer[16384];
  for (;;) {
    const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
    if (n == 0) break;
    if (n > 0) {
      answer.append(buffer, static_cast<size_t>(n));
      if (answer.size() > (16u << 20))
        return Errorf(StatusCode::kUnavailable, "{}: the answer is too long", address);
    } else if ((errno != EAGAIN && errno != EINTR) || !wait(POLLIN)) {
      return Errorf(StatusCode::kUnavailable, "{}{}: no answer in time", address, path);
    }
  }
  const size_t body = answer.find("\r\n\r\n");
  if (answer.rfind("HTTP/1.1 ", 0) != 0 || body == std::string::npos) {
    return Errorf(StatusCode::kUnavailable, "{}{}: not an HTTP answer", address, path);
  }
  if (answer.compare(9, 3, "200") != 0) {
    return Errorf(StatusCode::kUnavailable, "{}{}: {}: {}", address, path, answer.substr(9, 3),
                  answer.substr(body + 4));
  }
  return answer.substr(body + 4);
}

}  // namespace cairn::metrics
