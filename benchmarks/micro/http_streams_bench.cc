// The HTTP edge of the router with many open streams, before workers that cost nothing.
//
//   http_streams_bench [STREAMS]        default 2000
//
// Prints JSON: memory of the process (it includes the clients' descriptors, whose buffers are the
// kernel's), how much the streams added, the time from a complete request until the router has it,
// and the time of a whole request over a connection that stays.

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "common/net/address.h"
#include "services/router/http/http_edge.h"
#include "tests/support/fake_router.h"

namespace cairn::router {
namespace {

constexpr int kEvents = 20;
constexpr int kRequests = 5000;

double ResidentMiB() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmRSS:") continue;
    double kilobytes = 0;
    status >> kilobytes;
    return kilobytes / 1024;
  }
  return 0;
}

void Must(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "http_streams_bench: %s\n", what);
  std::exit(1);
}

int Connect(const std::string& address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(net::ParseListenAddress(address, "address")->port);
  Must(fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0, "connect");
  return fd;
}

std::string Post(const std::string& body) {
  return fmt::format(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n\r\n{}",
      body.size(), body);
}

void ReadUntil(int fd, std::string_view end) {
  std::string text;
  char buffer[16 << 10];
  while (text.find(end) == std::string::npos) {
    const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
    Must(n > 0, "a connection ended");
    text.append(buffer, static_cast<size_t>(n));
  }
}

double At(std::vector<double>& sorted, double share) {
  std::sort(sorted.begin(), sorted.end());
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

int Main(int streams) {
  const rlimit files{65536, 65536};
  setrlimit(RLIMIT_NOFILE, &files);
  FakeRouter router;
  Mutex mu;
  std::vector<double> added;
  HttpConfig config;
  config.listen = "127.0.0.1:0";
  auto edge =
      HttpEdge::Start(config, {}, &router, /*relay=*/false, /*reads=*/nullptr, [&](double seconds) {
        MutexLock lock(mu);
        added.push_back(seconds);
      });
  Must(edge.ok(), "cannot start");
  const std::string& address = (*edge)->address();

  const double before = ResidentMiB();
  const std::string message =
      R"("messages":[{"role":"user","content":")" + std::string(2000, 'x') + "\"}]";
  std::vector<int> clients;
  std::vector<FakeRouter::Running> running;
  for (int i = 0; i < streams; ++i) {
    clients.push_back(Connect(address));
    const std::string request = Post("{\"stream\":true," + message + "}");
    Must(send(clients.back(), request.data(), request.size(), 0) ==
             static_cast<ssize_t>(request.size()),
         "send");
    while (router.waiting() == 0) {
    }
    running.push_back({{}, router.Take().observer});
  }
  for (int event = 0; event < kEvents; ++event) {
    for (const auto& each : running) each.observer->OnToken(1, fmt::format(" token{}.", event));
  }
  for (const int fd : clients) ReadUntil(fd, fmt::format("token{}.", kEvents - 1));
  const HttpEdge::Stats stats = (*edge)->GetStats();
  Must(stats.api.open_streams == static_cast<uint64_t>(streams), "a stream is not open");
  const double open = ResidentMiB();
  for (const auto& each : running) each.observer->OnDone({.finish_reason = "stop"});
  for (const int fd : clients) {
    ReadUntil(fd, "[DONE]");
    close(fd);
  }
  running.clear();

  router.on_generate = [](const FakeRouter::Running& each) {
    each.observer->OnToken(1, "x");
    each.observer->OnDone({.finish_reason = "stop"});
  };
  const int fd = Connect(address);
  const std::string request = Post("{" + message + "}");
  std::vector<double> whole;
  {
    MutexLock lock(mu);
    added.clear();
  }
  for (int i = 0; i < kRequests; ++i) {
    const TimePoint began = SteadyClock::Get().Now();
    Must(send(fd, request.data(), request.size(), 0) > 0, "send");
    ReadUntil(fd, "\"usage\"");
    whole.push_back(1e6 * Seconds(SteadyClock::Get().Now() - began));
  }
  close(fd);
  MutexLock lock(mu);
  for (double& each : added) each *= 1e6;
  fmt::print(
      "{{\"streams\":{},\"resident_mib\":{:.1f},\"added_mib\":{:.1f},\"kib_per_stream\":{:.2f},"
      "\"handed_on_us_p50\":{:.1f},\"handed_on_us_p99\":{:.1f},"
      "\"request_us_p50\":{:.1f},\"request_us_p99\":{:.1f}}}\n",
      streams, open, open - before, (open - before) * 1024 / streams, At(added, .5), At(added, .99),
      At(whole, .5), At(whole, .99));
  return 0;
}

}  // namespace
}  // namespace cairn::router

int main(int argc, char** argv) {
  return cairn::router::Main(argc > 1 ? std::atoi(argv[1]) : 2000);
}
