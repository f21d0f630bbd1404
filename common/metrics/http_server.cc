#include "common/metrics/http_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <thread>
#include <utility>

#include "common/concurrency/executor.h"
#include "common/concurrency/mutex.h"
#include "common/metrics/http_request.h"

namespace cairn::metrics {
namespace {

constexpr int kBacklog = 1024;
constexpr int kAcceptsPerTurn = 64;
// When no descriptor is left, or after an error that would come again at once.
constexpr Duration kAcceptPause = std::chrono::milliseconds(50);
// How long a client may go on sending after its answer: a reset would take the answer from it.
constexpr Duration kLinger = std::chrono::seconds(1);

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

const char* TextOf(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Service Unavailable";
  }
}

std::string Render(const HttpAnswer& answer) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
      answer.code, TextOf(answer.code), answer.type, answer.body.size(), answer.body);
}

}  // namespace

struct HttpServer::Impl {
  enum class State { kReading, kMaking, kSending, kLingering };
  struct Connection {
    Descriptor socket;
    uint64_t id = 0;
    TimePoint deadline;
    State state = State::kReading;
    HttpRequest request = {};
    bool slow = false;  // It has one of the places of slow answers.
    std::string answer = {};
    size_t sent = 0;
  };
  struct Made {
    uint64_t id;
    HttpAnswer answer;
  };

  Options options;
  std::vector<HttpRoute> routes;
  std::string address;
  Descriptor listening, wake;
  ThreadPool slow{{.name = "scrape", .threads = 1, .queue_capacity = kSlowAnswers}};
  Mutex mu;
  std::vector<Made> made ABSL_GUARDED_BY(mu);
  bool stopping ABSL_GUARDED_BY(mu) = false;
  std::thread thread;

  // The thread's own. In the order in which they came.
  std::list<Connection> connections;
  uint64_t last_id = 0;
  TimePoint accept_from;

  ~Impl() {
    if (!thread.joinable()) return;
    {
      MutexLock lock(mu);
      stopping = true;
    }
    Wake();
    thread.join();
    slow.Stop();
  }

  Status Bind();
  void Wake() {
    const uint64_t one = 1;
    (void)!write(wake.get(), &one, sizeof one);
  }
  void Run();
  bool TakeMade();
  void Accept();
  void MakeRoom();
  // False: the connection is over.
  bool Step(Connection& c, short events);
  bool Read(Connection& c);
  void Answer(Connection& c);
  void Send(Connection& c, const HttpAnswer& answer);
  bool Write(Connection& c);
  size_t SlowAnswers() const {
    return static_cast<size_t>(std::count_if(connections.begin(), connections.end(),
                                             [](const Connection& c) { return c.slow; }));
  }
};

Status HttpServer::Impl::Bind() {
  const size_t colon = options.listen.rfind(':');
  std::string host = options.listen.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const auto failed = [&](const char* why) {
    return Errorf(StatusCode::kUnavailable,
                  "admin.listen: cannot bind '{}': {}: is the port taken?", options.listen, why);
  };
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int rc =
      getaddrinfo(host.c_str(), options.listen.substr(colon + 1).c_str(), &hints, &found);
  if (rc != 0) return failed(gai_strerror(rc));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return failed(std::strerror(errno));
  listening = Descriptor(fd);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd, kBacklog) != 0) {
    return failed(std::strerror(errno));
  }
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size);
  const uint16_t port = name.ss_family == AF_INET6
                            ? reinterpret_cast<const sockaddr_in6&>(name).sin6_port
                            : reinterpret_cast<const sockaddr_in&>(name).sin_port;
  address = fmt::format("{}:{}", options.listen.substr(0, colon), ntohs(port));
  return OkStatus();
}

void HttpServer::Impl::Run() {
  pthread_setname_np(pthread_self(), "admin");
  const Clock& clock = SteadyClock::Get();
  std::vector<pollfd> polled;
  while (TakeMade()) {
    const TimePoint now = clock.Now();
    std::erase_if(connections, [now](const Connection& c) {
      return c.state != State::kMaking && c.deadline <= now;
    });
    TimePoint until = now + std::chrono::hours(1);
    polled.clear();
    polled.push_back({wake.get(), POLLIN, 0});
    polled.push_back({listening.get(), static_cast<short>(now < accept_from ? 0 : POLLIN), 0});
    if (now < accept_from) until = std::min(until, accept_from);
    for (const Connection& c : connections) {
      short events = POLLIN;
      if (c.state == State::kMaking) events = 0;
      if (c.state == State::kSending) events = POLLOUT;
      polled.push_back({c.socket.get(), events, 0});
      if (c.state != State::kMaking) until = std::min(until, c.deadline);
    }
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
    if (poll(polled.data(), polled.size(), static_cast<int>(ms)) <= 0) continue;
    size_t at = 2;
    for (auto c = connections.begin(); c != connections.end(); ++at) {
      c = polled[at].revents == 0 || Step(*c, polled[at].revents) ? std::next(c)
                                                                  : connections.erase(c);
    }
    if ((polled[1].revents & POLLIN) != 0) Accept();
  }
}

// False: stop.
bool HttpServer::Impl::TakeMade() {
  uint64_t count = 0;
  (void)!read(wake.get(), &count, sizeof count);
  std::vector<Made> taken;
  {
    MutexLock lock(mu);
    if (stopping) return false;
    taken.swap(made);
  }
  for (const Made& m : taken) {
    const auto c = std::find_if(connections.begin(), connections.end(),
                                [&](const Connection& each) { return each.id == m.id; });
    if (c == connections.end()) continue;
    Send(*c, m.answer);
    if (!Write(*c)) connections.erase(c);
  }
  return true;
}

void HttpServer::Impl::MakeRoom() {
  const auto oldest = [this](State state) {
    return std::find_if(connections.begin(), connections.end(),
                        [state](const Connection& c) { return c.state == state; });
  };
  // The readers first: of those that have their answer, most are about to leave.
  for (const State state : {State::kReading, State::kLingering, State::kSending, State::kMaking}) {
    if (const auto c = oldest(state); c != connections.end()) {
      connections.erase(c);
      return;
    }
  }
}

void HttpServer::Impl::Accept() {
  const TimePoint now = SteadyClock::Get().Now();
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    const int fd = accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      // No descriptor is left: one of ours may go, and the next attempt waits.
      if (errno == EMFILE || errno == ENFILE) MakeRoom();
      accept_from = now + kAcceptPause;
      return;
    }
    if (connections.size() >= options.max_connections) MakeRoom();
    Connection& c = connections.emplace_back(Connection{
        .socket = Descriptor(fd), .id = ++last_id, .deadline = now + options.request_timeout});
    // Most requests come with the connection.
    if (!Read(c)) connections.pop_back();
  }
}

bool HttpServer::Impl::Step(Connection& c, short events) {
  switch (c.state) {
    case State::kReading:
      return Read(c);
    case State::kMaking:
      return (events & (POLLERR | POLLHUP)) == 0;
    case State::kSending:
      return Write(c);
    case State::kLingering: {
      char buffer[4096];
      const ssize_t n = recv(c.socket.get(), buffer, sizeof buffer, 0);
      return n > 0 || (n < 0 && errno == EAGAIN);
    }
  }
  return false;
}

bool HttpServer::Impl::Read(Connection& c) {
  char buffer[4096];
  const ssize_t n = recv(c.socket.get(), buffer, sizeof buffer, 0);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  if (!c.request.Feed({buffer, static_cast<size_t>(n)})) return true;
  Answer(c);
  return c.state != State::kSending || Write(c);
}

void HttpServer::Impl::Answer(Connection& c) {
  const HttpRequest& request = c.request;
  if (request.error() != 0)
    return Send(c, PlainAnswer(request.error(), "not a request for this port\n"));
  if (request.method() != "GET") return Send(c, PlainAnswer(405, "only GET\n"));
  const auto route = std::find_if(routes.begin(), routes.end(), [&](const HttpRoute& each) {
    return each.path == request.path();
  });
  if (route == routes.end()) return Send(c, PlainAnswer(404, "no such page\n"));
  if (!route->slow) return Send(c, route->answer());
  if (SlowAnswers() >= kSlowAnswers) {
    // A reader that does not take its answer gives way.
    const auto idle = std::find_if(connections.begin(), connections.end(), [](const auto& each) {
      return each.slow && each.state == State::kSending;
    });
    if (idle == connections.end())
      return Send(c, PlainAnswer(503, "too many requests at a time\n"));
    idle->deadline = TimePoint();
    idle->slow = false;
  }
  c.slow = true;
  c.state = State::kMaking;
  const Status posted = slow.Post([this, id = c.id, answer = &route->answer] {
    HttpAnswer result = (*answer)();
    {
      MutexLock lock(mu);
      made.push_back({id, std::move(result)});
    }
    Wake();
  });
  if (!posted.ok()) Send(c, PlainAnswer(503, "too many requests at a time\n"));
}

void HttpServer::Impl::Send(Connection& c, const HttpAnswer& answer) {
  c.answer = Render(answer);
  c.state = State::kSending;
  c.deadline = SteadyClock::Get().Now() + options.answer_timeout;
}

bool HttpServer::Impl::Write(Connection& c) {
  while (c.sent < c.answer.size()) {
    const ssize_t n =
        send(c.socket.get(), c.answer.data() + c.sent, c.answer.size() - c.sent, MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    c.sent += static_cast<size_t>(n);
  }
  shutdown(c.socket.get(), SHUT_WR);
  c.state = State::kLingering;
  c.slow = false;
  c.answer = std::string();
  c.deadline = SteadyClock::Get().Now() + kLinger;
  return true;
}

HttpServer::HttpServer() : impl_(std::make_unique<Impl>()) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::Start(Options options,
                                                      std::vector<HttpRoute> routes) {
  std::unique_ptr<HttpServer> server(new HttpServer());
  Impl& impl = *server->impl_;
  impl.options = std::move(options);
  impl.routes = std::move(routes);
  CAIRN_RETURN_IF_ERROR(impl.Bind());
  impl.wake = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (impl.wake.get() < 0) {
    return Errorf(StatusCode::kUnavailable, "admin.listen: eventfd: {}", std::strerror(errno));
  }
  impl.thread = std::thread([&impl] { impl.Run(); });
  return server;
}

const std::string& HttpServer::address() const { return impl_->address; }

}  // namespace cairn::metrics
