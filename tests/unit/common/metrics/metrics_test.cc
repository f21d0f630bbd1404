#include "common/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "common/concurrency/mutex.h"
#include "common/metrics/admin_server.h"
#include "common/metrics/certificates.h"
#include "common/net/checked_files.h"
#include "common/status/matchers.h"

namespace cairn::metrics {
namespace {

using cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr Duration kTimeout = std::chrono::seconds(60);

// A certificate that ends in two days.
class CertificatesTest : public ::testing::Test {
 protected:
  CertificatesTest() {
    std::filesystem::create_directories(folder_);
    const std::string command =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "
        "/CN=localhost -keyout " +
        folder_ + "/key.pem -out " + folder_ + "/cert.pem 2>/dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0);
  }
  ~CertificatesTest() override { std::filesystem::remove_all(folder_); }

  const std::string folder_ =
      ::testing::TempDir() + "cairn_certificates." + std::to_string(getpid());
};

TEST_F(CertificatesTest, SayWhenThoseInUseEnd) {
  Registry registry;
  const std::string path = folder_ + "/cert.pem", other = folder_ + "/other.pem";
  std::filesystem::copy(path, other);
  ExportCertificates({.certificate = path, .private_key = folder_ + "/key.pem", .client_ca = ""},
                     {{"cache", other}, {"workers", ""}}, &registry);
  const std::string expiry = "cairn_tls_cert_expiry_timestamp_seconds";
  EXPECT_THAT(registry.Scrape(), Not(HasSubstr(expiry)));  // Nobody uses them yet.

  net::CheckedFiles server(
      {.authorities = "", .certificate = path, .private_key = folder_ + "/key.pem"});
  net::CheckedFiles client({.authorities = other, .certificate = "", .private_key = ""});
  const std::string scrape = registry.Scrape();
  const double in_two_days =
      static_cast<double>(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())) +
      2 * 86400;
  for (const char* cert : {"server", "cache"}) {
    const std::string row = expiry + "{cert=\"" + cert + "\"} ";
    const size_t at = scrape.find("\n" + row);
    ASSERT_NE(at, std::string::npos) << scrape;
    EXPECT_NEAR(std::stod(scrape.substr(at + 1 + row.size())), in_two_days, 600);
    EXPECT_THAT(scrape, HasSubstr(fmt::format("cairn_tls_files_refused{{cert=\"{}\"}} 0\n", cert)));
  }

  // Files that have become wrong change nothing but this.
  const std::string refusals = "cairn_tls_reloads_total{result=\"refused\"} ";
  const auto count = [&](const std::string& row) {
    const std::string now = registry.Scrape();
    return std::stod(now.substr(now.find("\n" + row) + 1 + row.size()));
  };
  const double before = count(refusals);
  std::ofstream(path) << "nothing";
  server.Look();
  server.Look();
  const std::string wrong = registry.Scrape();
  const std::string row = expiry + "{cert=\"server\"} ";
  EXPECT_EQ(count(row), std::stod(scrape.substr(scrape.find("\n" + row) + 1 + row.size())));
  EXPECT_THAT(wrong, HasSubstr("cairn_tls_files_refused{cert=\"server\"} 1\n"));
  EXPECT_THAT(wrong, HasSubstr("cairn_tls_files_refused{cert=\"cache\"} 0\n"));
  EXPECT_EQ(count(refusals), before + 1);
  // The one of before is there again.
  std::filesystem::copy(other, path, std::filesystem::copy_options::overwrite_existing);
  server.Look();
  EXPECT_THAT(registry.Scrape(), HasSubstr("cairn_tls_files_refused{cert=\"server\"} 0\n"));
}

TEST_F(CertificatesTest, SayNothingWithoutTls) {
  Registry registry;
  ExportCertificates({}, {}, &registry);
  EXPECT_EQ(registry.Scrape(), "");
}

TEST(RegistryTest, ScrapesWhatWasCounted) {
  Registry registry;
  const Counter hits = registry.AddCounter("cairn_a_total", "A.", {{"tier", "host"}});
  registry.AddCounter("cairn_a_total", "A.", {{"tier", "disk"}});
  hits.Add();
  hits.Add(2);
  registry.AddGauge("cairn_b_bytes", "B.").Set(7);
  registry.AddHistogram("cairn_c_seconds", "C.", {0.1, 1}).Observe(0.5);
  registry.AddCollector([](Sink& sink) {
    sink.Counter("cairn_d_total", "D.", {{"x", "1"}}, 5);
    sink.Gauge("cairn_e", "E.", {}, 6);
    sink.Counter("cairn_d_total", "D.", {{"x", "2"}}, 8);
  });
  EXPECT_THAT(registry.Scrape(),
              AllOf(HasSubstr("cairn_a_total{tier=\"host\"} 3\n"),
                    HasSubstr("cairn_a_total{tier=\"disk\"} 0\n"), HasSubstr("cairn_b_bytes 7\n"),
                    HasSubstr("cairn_c_seconds_bucket{le=\"0.1\"} 0\n"),
                    HasSubstr("cairn_c_seconds_bucket{le=\"1\"} 1\n"),
                    HasSubstr("cairn_d_total{x=\"1\"} 5\n"),
                    HasSubstr("cairn_d_total{x=\"2\"} 8\n"), HasSubstr("cairn_e 6\n")));
}

TEST(RegistryTest, ProcessMetricsAreOfThisProcess) {
  Registry registry;
  registry.AddProcessMetrics({{"io_backend", "threads"}});
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, AllOf(HasSubstr("process_cpu_seconds_total"), HasSubstr("process_open_fds"),
                          HasSubstr("io_backend=\"threads\"")));
  const auto value = [&](const std::string& name) {
    return std::strtod(text.c_str() + text.find("\n" + name + " ") + name.size() + 2, nullptr);
  };
  EXPECT_GT(value("process_resident_memory_bytes"), 1e6);
  EXPECT_NEAR(value("process_start_time_seconds"), static_cast<double>(time(nullptr)), 60);
}

// A connection of a client that does what a test wants. `receive_bytes`: of the kernel's buffer.
int Connect(const std::string& address, int receive_bytes = 0) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (receive_bytes > 0) {
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
  }
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  return fd;
}
void Send(int fd, const std::string& text) {
  EXPECT_EQ(send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

class AdminServerTest : public ::testing::Test {
 protected:
  FakeClock clock;
  Registry registry;
  Health health{&clock, std::chrono::seconds(5)};
};

TEST_F(AdminServerTest, ProbesFollowTheState) {
  auto server = AdminServer::Start({.listen = "127.0.0.1:0"}, &registry, &health);
  ASSERT_OK(server);
  const std::string at = (*server)->address();
  EXPECT_OK(HttpGet(at, "/livez", kTimeout));
  EXPECT_THAT(HttpGet(at, "/startupz", kTimeout),
              StatusIs(StatusCode::kUnavailable, HasSubstr("503")));
  EXPECT_THAT(HttpGet(at, "/readyz", kTimeout),
              StatusIs(StatusCode::kUnavailable, HasSubstr("starting")));
  health.SetState(NodeState::kReady, "");
  EXPECT_OK(HttpGet(at, "/startupz", kTimeout));
  EXPECT_OK(HttpGet(at, "/readyz", kTimeout));
  health.SetState(NodeState::kDraining, "draining");
  EXPECT_OK(HttpGet(at, "/startupz", kTimeout));
  EXPECT_THAT(HttpGet(at, "/readyz", kTimeout),
              StatusIs(StatusCode::kUnavailable, HasSubstr("draining")));
}

TEST_F(AdminServerTest, LivenessEndsWithTheHeartbeat) {
  auto server = AdminServer::Start({.listen = "127.0.0.1:0"}, &registry, &health);
  ASSERT_OK(server);
  clock.Advance(std::chrono::seconds(6));
  EXPECT_THAT(HttpGet((*server)->address(), "/livez", kTimeout),
              StatusIs(StatusCode::kUnavailable, HasSubstr("503")));
  health.Beat();
  EXPECT_OK(HttpGet((*server)->address(), "/livez", kTimeout));
}

// A thread that is idle is fine; one that works on one thing for too long is not.
TEST_F(AdminServerTest, LivenessEndsWithAThreadThatIsStuck) {
  auto server = AdminServer::Start({.listen = "127.0.0.1:0"}, &registry, &health);
  ASSERT_OK(server);
  std::atomic<int> busy_seconds{0};
  health.Watch("the poller of calls", [&] { return std::chrono::seconds(busy_seconds.load()); });
  for (const int seconds : {0, 5}) {
    busy_seconds = seconds;
    EXPECT_OK(HttpGet((*server)->address(), "/livez", kTimeout)) << seconds;
  }
  busy_seconds = 6;
  EXPECT_THAT(
      HttpGet((*server)->address(), "/livez", kTimeout),
      StatusIs(StatusCode::kUnavailable, HasSubstr("the poller of calls is stuck for 6 s")));
  busy_seconds = 0;
  EXPECT_OK(HttpGet((*server)->address(), "/livez", kTimeout));
}

// Three times as many as there are places, half of them in the middle of a request. Each probe is
// answered all the same.
TEST_F(AdminServerTest, SilentConnectionsDoNotKeepProbesOut) {
  auto server = AdminServer::Start(
      {.listen = "127.0.0.1:0", .max_connections = 16, .request_timeout = std::chrono::hours(1)},
      &registry, &health);
  ASSERT_OK(server);
  const std::string at = (*server)->address();
  std::vector<int> silent;
  for (int i = 0; i < 48; ++i) {
    silent.push_back(Connect(at));
    if (i % 2 == 0) Send(silent.back(), "GET /l");
    EXPECT_OK(HttpGet(at, "/livez", kTimeout)) << i;
  }
  // The oldest went; the newest is still there.
  char byte = 0;
  EXPECT_EQ(recv(silent.front(), &byte, 1, 0), 0);
  EXPECT_EQ(recv(silent.back(), &byte, 1, MSG_DONTWAIT), -1);
  for (const int fd : silent) close(fd);
}

TEST_F(AdminServerTest, ASlowScrapeDoesNotKeepProbesOut) {
  Mutex mu;
  CondVar changed;
  bool go = false;
  registry.AddCollector([&](Sink&) {
    MutexLock lock(mu);
    changed.Wait(mu, [&] { return go; });
  });
  auto server = AdminServer::Start({.listen = "127.0.0.1:0"}, &registry, &health);
  ASSERT_OK(server);
  std::vector<std::thread> scrapes;
  std::atomic<int> scraped{0};
  for (size_t i = 0; i < AdminServer::kScrapes; ++i) {
    scrapes.emplace_back(
        [&] { scraped += HttpGet((*server)->address(), "/metrics", kTimeout).ok(); });
  }
  for (int i = 0; i < 20; ++i) EXPECT_OK(HttpGet((*server)->address(), "/livez", kTimeout));
  {
    MutexLock lock(mu);
    go = true;
    changed.NotifyAll();
  }
  for (std::thread& scrape : scrapes) scrape.join();
  EXPECT_EQ(scraped.load(), static_cast<int>(AdminServer::kScrapes));
}

// Whoever scrapes and takes nothing has a place until somebody else wants it.
TEST_F(AdminServerTest, ScrapesThatNobodyReadsGiveWay) {
  registry.AddCollector([](Sink& sink) {
    sink.Gauge("cairn_x", "X.", {{"label", std::string(6 << 20, 'x')}}, 1);
  });
  auto server = AdminServer::Start({.listen = "127.0.0.1:0"}, &registry, &health);
  ASSERT_OK(server);
  std::vector<int> readers;
  char buffer[4096];
  for (size_t i = 0; i < AdminServer::kScrapes; ++i) {
    readers.push_back(Connect((*server)->address(), /*receive_bytes=*/4096));
    Send(readers.back(), "GET /metrics HTTP/1.1\r\n\r\n");
    ASSERT_EQ(recv(readers.back(), buffer, 1, 0), 1);
  }
  for (int i = 0; i < 2; ++i) EXPECT_OK(HttpGet((*server)->address(), "/metrics", kTimeout));
  size_t got = 0;
  for (ssize_t n = 1; n > 0; got += static_cast<size_t>(std::max<ssize_t>(n, 0))) {
    n = recv(readers.front(), buffer, sizeof buffer, 0);
  }
  EXPECT_LT(got, size_t{6} << 20);
  for (const int fd : readers) close(fd);
}

TEST_F(AdminServerTest, AnswersWhatIsNoRequestForItWithAnError) {
  auto server = AdminServer::Start({.listen = "127.0.0.1:0"}, &registry, &health);
  ASSERT_OK(server);
  const auto answer_to = [&](const std::string& request) {
    const int fd = Connect((*server)->address());
    Send(fd, request);
    std::string answer;
    char buffer[4096];
    for (ssize_t n = 0; (n = recv(fd, buffer, sizeof buffer, 0)) > 0;) {
      answer.append(buffer, static_cast<size_t>(n));
    }
    close(fd);
    return answer;
  };
  EXPECT_THAT(
      answer_to("GET http://a:1/livez?x HTTP/1.0\r\n\r\n"),
      AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("Connection: close\r\n"), EndsWith("alive\n")));
  for (const char* bad : {"GET\r\n\r\n", "GET /\r\n\r\n", "GET x HTTP/1.1\r\n\r\n", "  \r\n\r\n"}) {
    EXPECT_THAT(answer_to(bad), StartsWith("HTTP/1.1 40")) << bad;
  }
  EXPECT_THAT(answer_to("POST /livez HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  for (const char* other : {"GET / HTTP/9.9\r\n\r\n", "GET /livez FTP/1.1\r\n\r\n"}) {
    EXPECT_THAT(answer_to(other), StartsWith("HTTP/1.1 505")) << other;
  }
  EXPECT_THAT(answer_to("GET /" + std::string(20'000, 'a')), StartsWith("HTTP/1.1 431"));
}

TEST_F(AdminServerTest, ServesMetricsAndNothingElse) {
  registry.AddGauge("cairn_x", "X.").Set(3);
  health.Export(&registry);
  auto server = AdminServer::Start({.listen = "127.0.0.1:0"}, &registry, &health);
  ASSERT_OK(server);
  const auto body = HttpGet((*server)->address(), "/metrics", kTimeout);
  ASSERT_OK(body);
  EXPECT_THAT(*body,
              AllOf(HasSubstr("cairn_x 3\n"), HasSubstr("cairn_node_state{state=\"starting\"} 1\n"),
                    HasSubstr("cairn_node_state{state=\"ready\"} 0\n")));
  for (const char* path : {"/", "/etc/passwd", "/../etc/passwd", "/metrics/x", "/livezz"}) {
    EXPECT_THAT(HttpGet((*server)->address(), path, kTimeout),
                StatusIs(StatusCode::kUnavailable, HasSubstr("40")))
        << path;
  }
}

TEST_F(AdminServerTest, AThousandScrapesAreAnsweredOrRefusedAndLeaveNothing) {
  registry.AddGauge("cairn_x", "X.").Set(3);
  auto server = AdminServer::Start({.listen = "127.0.0.1:0"}, &registry, &health);
  ASSERT_OK(server);
  const auto descriptors = [] {
    const std::filesystem::directory_iterator open("/proc/self/fd");
    return std::distance(begin(open), end(open));
  };
  const auto before = descriptors();
  std::vector<std::thread> scrapers;
  // As many at once as the server makes, and twice.
  for (size_t i = 0; i < 2 * AdminServer::kScrapes; ++i) {
    scrapers.emplace_back([&] {
      for (int scrape = 0; scrape < 64; ++scrape) {
        const auto body = HttpGet((*server)->address(), "/metrics", kTimeout);
        if (body.ok()) {
          EXPECT_THAT(*body, HasSubstr("cairn_x 3\n"));
        } else {
          // 503, or it gave its place to a newer one.
          EXPECT_EQ(body.status().code(), StatusCode::kUnavailable) << body.status();
        }
      }
    });
  }
  for (std::thread& scraper : scrapers) scraper.join();
  EXPECT_OK(HttpGet((*server)->address(), "/metrics", kTimeout));
  server->reset();
  EXPECT_LE(descriptors(), before);
}

TEST_F(AdminServerTest, RefusesAddressesItCannotUse) {
  for (const char* listen :
       {"", "7401", "localhost:", ":1", "127.0.0.1:x", "127.0.0.1:1,127.0.0.1:2"}) {
    EXPECT_THAT(AdminServer::Start({.listen = listen}, &registry, &health),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("admin.listen")))
        << listen;
  }
  auto first = AdminServer::Start({.listen = "127.0.0.1:0"}, &registry, &health);
  ASSERT_OK(first);
  EXPECT_THAT(AdminServer::Start({.listen = (*first)->address()}, &registry, &health),
              StatusIs(StatusCode::kUnavailable, HasSubstr("cannot bind")));
}

}  // namespace
}  // namespace cairn::metrics
