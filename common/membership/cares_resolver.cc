#include "common/membership/cares_resolver.h"

#include <ares.h>
#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <deque>
#include <thread>
#include <utility>

#include "common/concurrency/mutex.h"

namespace cairn::membership {
namespace {

// A headless Service of a thousand members has no more. c-ares asks for a fixed array.
constexpr int kMaxAddresses = 4096;
constexpr int kTimeoutMs = 1000;
constexpr int kTries = 3;

int TypeNumber(RecordType type) {
  switch (type) {
    case RecordType::kA:
      return ns_t_a;
    case RecordType::kAaaa:
      return ns_t_aaaa;
    case RecordType::kSrv:
      break;
  }
  return ns_t_srv;
}

Status FromCares(int code) {
  switch (code) {
    case ARES_ENOTFOUND:
      return Errorf(StatusCode::kNotFound, "there is no such name");
    case ARES_EDESTRUCTION:
    case ARES_ECANCELLED:
      return Errorf(StatusCode::kCancelled, "the look-up was ended");
    case ARES_ETIMEOUT:
      return Errorf(StatusCode::kDeadlineExceeded, "no name server answered");
    default:
      return Errorf(StatusCode::kUnavailable, "{}", ares_strerror(code));
  }
}

template <typename Address>
std::string Text(int family, const Address& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(family, &address, text.data(), text.size());
  return text.data();
}

// The records of one whole answer. `code`: ARES_SUCCESS, ARES_ENODATA, ...
int Parse(RecordType type, const unsigned char* answer, int bytes, std::vector<Record>* records) {
  if (type == RecordType::kSrv) {
    ares_srv_reply* first = nullptr;
    const int code = ares_parse_srv_reply(answer, bytes, &first);
    for (const ares_srv_reply* r = first; r != nullptr; r = r->next) {
      records->push_back({.host = r->host, .port = r->port});
    }
    if (first != nullptr) ares_free_data(first);
    return code;
  }
  int count = kMaxAddresses;
  if (type == RecordType::kA) {
    std::vector<ares_addrttl> found(kMaxAddresses);
    const int code = ares_parse_a_reply(answer, bytes, nullptr, found.data(), &count);
    if (code != ARES_SUCCESS) return code;
    for (int i = 0; i < count; ++i) records->push_back({.host = Text(AF_INET, found[i].ipaddr)});
    return code;
  }
  std::vector<ares_addr6ttl> found(kMaxAddresses);
  const int code = ares_parse_aaaa_reply(answer, bytes, nullptr, found.data(), &count);
  if (code != ARES_SUCCESS) return code;
  for (int i = 0; i < count; ++i) records->push_back({.host = Text(AF_INET6, found[i].ip6addr)});
  return code;
}

struct Question {
  std::string name;
  RecordType type;
  Resolver::Done done;
};

void OnAnswer(void* arg, int code, int /*timeouts*/, unsigned char* answer, int bytes) {
  const std::unique_ptr<Question> question(static_cast<Question*>(arg));
  std::vector<Record> records;
  if (code == ARES_SUCCESS) code = Parse(question->type, answer, bytes, &records);
  if (code == ARES_SUCCESS || code == ARES_ENODATA) {
    question->done(std::move(records));
  } else {
    question->done(FromCares(code));
  }
}

}  // namespace

// c-ares takes its calls from one thread: this one. Others hand it questions.
class CaresResolver::Loop {
 public:
  Loop(ares_channel channel, int wake) : channel_(channel), wake_(wake) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Loop() {
    {
      MutexLock lock(mu_);
      stopping_ = true;
    }
    Wake();
    thread_.join();
    ares_destroy(channel_);  // Ends what is under way with ARES_EDESTRUCTION.
    close(wake_);
    // Those that arrived too late to be asked.
    std::deque<std::unique_ptr<Question>> left;
    {
      MutexLock lock(mu_);
      left.swap(questions_);
    }
    for (const auto& question : left) question->done(FromCares(ARES_EDESTRUCTION));
  }

  void Ask(std::unique_ptr<Question> question) {
    {
      MutexLock lock(mu_);
      questions_.push_back(std::move(question));
    }
    Wake();
  }

 private:
  void Wake() const {
    const uint64_t one = 1;
    // It fails only when the counter is full, and then the loop wakes anyway.
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
  }

  // False: the loop must end.
  bool TakeQuestions() {
    std::deque<std::unique_ptr<Question>> taken;
    {
      MutexLock lock(mu_);
      if (stopping_) return false;
      taken.swap(questions_);
    }
    for (auto& question : taken) {
      const std::string name = question->name;
      const int type = TypeNumber(question->type);
      ares_search(channel_, name.c_str(), ns_c_in, type, OnAnswer, question.release());
    }
    return true;
  }

  void Run() {
    pthread_setname_np(pthread_self(), "resolver");
    while (TakeQuestions()) {
      std::array<ares_socket_t, ARES_GETSOCK_MAXNUM> sockets{};
      const int bits = ares_getsock(channel_, sockets.data(), sockets.size());
      std::vector<pollfd> polled = {{.fd = wake_, .events = POLLIN, .revents = 0}};
      for (int i = 0; i < ARES_GETSOCK_MAXNUM; ++i) {
        short events = 0;
        if (ARES_GETSOCK_READABLE(bits, i)) events |= POLLIN;
        if (ARES_GETSOCK_WRITABLE(bits, i)) events |= POLLOUT;
        if (events != 0) polled.push_back({.fd = sockets[i], .events = events, .revents = 0});
      }
      timeval wait{};
      const timeval* const next = ares_timeout(channel_, nullptr, &wait);
      const int wait_ms =
          next == nullptr ? -1 : static_cast<int>(next->tv_sec * 1000 + next->tv_usec / 1000 + 1);
      poll(polled.data(), polled.size(), wait_ms);
      if (polled[0].revents != 0) {
        uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = read(wake_, &count, sizeof(count));
      }
      ares_process_fd(channel_, ARES_SOCKET_BAD, ARES_SOCKET_BAD);  // Timeouts.
      for (size_t i = 1; i < polled.size(); ++i) {
        const bool failed = (polled[i].revents & (POLLERR | POLLHUP)) != 0;
        const bool in = failed || (polled[i].revents & POLLIN) != 0;
        const bool out = (polled[i].revents & POLLOUT) != 0;
        if (!in && !out) continue;
        ares_process_fd(channel_, in ? polled[i].fd : ARES_SOCKET_BAD,
                        out ? polled[i].fd : ARES_SOCKET_BAD);
      }
    }
  }

  const ares_channel channel_;
  const int wake_;
  Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::unique_ptr<Question>> questions_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

Result<std::unique_ptr<CaresResolver>> CaresResolver::Create(const std::string& servers) {
  static const int library = ares_library_init(ARES_LIB_INIT_ALL);
  if (library != ARES_SUCCESS) {
    return Errorf(StatusCode::kUnavailable, "c-ares: {}", ares_strerror(library));
  }
  ares_options options{};
  options.timeout = kTimeoutMs;
  options.tries = kTries;
  // A member that starts is there for the next question: nothing is kept.
  ares_channel channel = nullptr;
  int code = ares_init_options(&channel, &options, ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES);
  if (code != ARES_SUCCESS) {
    return Errorf(StatusCode::kUnavailable, "c-ares: {}", ares_strerror(code));
  }
  if (!servers.empty()) {
    code = ares_set_servers_ports_csv(channel, servers.c_str());
    if (code != ARES_SUCCESS) {
      ares_destroy(channel);
      return InvalidArgument("cluster.dns.servers: got '{}', expected host:port,...: {}", servers,
                             ares_strerror(code));
    }
  }
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) {
    ares_destroy(channel);
    return Errorf(StatusCode::kResourceExhausted, "resolver: no descriptor is free");
  }
  return std::unique_ptr<CaresResolver>(new CaresResolver(std::make_unique<Loop>(channel, wake)));
}

CaresResolver::CaresResolver(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
CaresResolver::~CaresResolver() = default;

void CaresResolver::Resolve(const std::string& name, RecordType type, Done done) {
  loop_->Ask(
      std::make_unique<Question>(Question{.name = name, .type = type, .done = std::move(done)}));
}

}  // namespace cairn::membership
