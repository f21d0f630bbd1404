#include "common/metrics/admin_server.h"

#include <civetweb.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "common/concurrency/mutex.h"

namespace cairn::metrics {
namespace {

constexpr std::string_view kStateNames[] = {"starting", "ready", "draining"};

int Answer(mg_connection* connection, int code, const char* type, const std::string& body) {
  const char* text = code == 200   ? "OK"
                     : code == 405 ? "Method Not Allowed"
                                   : "Service Unavailable";
  mg_printf(
      connection,
      "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
      code, text, type, body.size());
  mg_write(connection, body.data(), body.size());
  return code;
}

constexpr char kPlain[] = "text/plain; charset=utf-8";

bool IsGet(mg_connection* connection) {
  const char* method = mg_get_request_info(connection)->request_method;
  return method != nullptr && std::strcmp(method, "GET") == 0;
}

}  // namespace

struct Health::Impl {
  const Clock* clock;
  const Duration max_silence;
  std::atomic<int64_t> last_beat_ns;
  mutable Mutex mu;
  NodeState state ABSL_GUARDED_BY(mu) = NodeState::kStarting;
  std::string reason ABSL_GUARDED_BY(mu) = "starting";
};

Health::Health(const Clock* clock, Duration max_silence)
    : impl_(new Impl{.clock = clock,
                     .max_silence = max_silence,
                     .last_beat_ns = clock->Now().time_since_epoch().count(),
                     .mu = {}}) {}
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

bool Health::Alive() const {
  const int64_t silence_ns = impl_->clock->Now().time_since_epoch().count() -
                             impl_->last_beat_ns.load(std::memory_order_relaxed);
  return Duration(silence_ns) <= impl_->max_silence;
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
  const Registry* registry = nullptr;
  const Health* health = nullptr;
  mg_context* context = nullptr;
  std::string address;

  static int Live(mg_connection* c, void* self) {
    if (!IsGet(c)) return Answer(c, 405, kPlain, "only GET\n");
    const bool alive = static_cast<Impl*>(self)->health->Alive();
    return Answer(c, alive ? 200 : 503, kPlain, alive ? "alive\n" : "the main loop does not run\n");
  }
  static int Startup(mg_connection* c, void* self) {
    if (!IsGet(c)) return Answer(c, 405, kPlain, "only GET\n");
    const bool started = static_cast<Impl*>(self)->health->state() != NodeState::kStarting;
    return Answer(c, started ? 200 : 503, kPlain, started ? "started\n" : "starting\n");
  }
  static int Ready(mg_connection* c, void* self) {
    if (!IsGet(c)) return Answer(c, 405, kPlain, "only GET\n");
    const Health* health = static_cast<Impl*>(self)->health;
    const bool ready = health->state() == NodeState::kReady;
    return Answer(c, ready ? 200 : 503, kPlain,
                  ready ? "ready\n" : "not ready: " + health->reason() + "\n");
  }
  static int Metrics(mg_connection* c, void* self) {
    if (!IsGet(c)) return Answer(c, 405, kPlain, "only GET\n");
    return Answer(c, 200, "text/plain; version=0.0.4; charset=utf-8",
                  static_cast<Impl*>(self)->registry->Scrape());
  }
};

AdminServer::AdminServer() : impl_(std::make_unique<Impl>()) {}

Result<std::unique_ptr<AdminServer>> AdminServer::Start(const std::string& listen,
                                                        const Registry* registry,
                                                        const Health* health) {
  const size_t colon = listen.rfind(':');
  // Civetweb takes lists of ports and suffixes for TLS: none of them is meant here.
  if (colon == std::string::npos || colon == 0 || colon + 1 == listen.size() ||
      listen.find_first_not_of("0123456789", colon + 1) != std::string::npos ||
      listen.find_first_of(",+ ") != std::string::npos) {
    return InvalidArgument("admin.listen: got '{}', expected an address such as 127.0.0.1:7401",
                           listen);
  }
  std::unique_ptr<AdminServer> server(new AdminServer());
  Impl& impl = *server->impl_;
  impl.registry = registry;
  impl.health = health;
  // A client that connects and says nothing more holds a thread until the timeout: with few threads
  // and a long one, a handful of them keeps the probes out, and the node is restarted for nothing.
  const char* options[] = {"listening_ports",
                           listen.c_str(),
                           "num_threads",
                           "8",
                           "request_timeout_ms",
                           "1000",
                           "connection_queue",
                           "64",
                           "enable_keep_alive",
                           "no",
                           "enable_directory_listing",
                           "no",
                           nullptr};
  mg_init_library(0);
  mg_callbacks callbacks{};
  // We say it ourselves.
  callbacks.log_message = [](const mg_connection*, const char*) { return 1; };
  impl.context = mg_start(&callbacks, nullptr, options);
  if (impl.context == nullptr) {
    return Errorf(StatusCode::kUnavailable, "admin.listen: cannot bind '{}': is the port taken?",
                  listen);
  }
  mg_server_port port{};
  mg_get_server_ports(impl.context, 1, &port);
  impl.address = fmt::format("{}:{}", listen.substr(0, colon), port.port);
  mg_set_request_handler(impl.context, "/livez$", Impl::Live, &impl);
  mg_set_request_handler(impl.context, "/startupz$", Impl::Startup, &impl);
  mg_set_request_handler(impl.context, "/readyz$", Impl::Ready, &impl);
  mg_set_request_handler(impl.context, "/metrics$", Impl::Metrics, &impl);
  return server;
}

AdminServer::~AdminServer() {
  if (impl_->context == nullptr) return;
  // Civetweb's acceptor looks at its stop flag every 2 s, or after a connection: knock until it has
  // seen it.
  std::atomic<bool> stopped{false};
  std::thread knock([&] {
    while (!stopped) (void)HttpGet(impl_->address, "/livez", std::chrono::milliseconds(10));
  });
  mg_stop(impl_->context);
  stopped = true;
  knock.join();
}

const std::string& AdminServer::address() const { return impl_->address; }

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
