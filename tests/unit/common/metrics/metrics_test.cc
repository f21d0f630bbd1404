#include "common/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "common/concurrency/mutex.h"
#include "common/metrics/admin_server.h"
#include "common/metrics/http_request.h"
#include "common/metrics/http_server.h"
#include "common/status/matchers.h"

namespace cairn::metrics {
namespace {

using cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Duration kTimeout = std::chrono::seconds(60);

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

class AdminServerTest : public ::testing::Test {
 protected:
  FakeClock clock;
  Registry registry;
  Health health{&clock, std::chrono::seconds(5)};
};

TEST_F(AdminServerTest, ProbesFollowTheState) {
  auto server = AdminServer::Start("127.0.0.1:0", &registry, &health);
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
  auto server = AdminServer::Start("127.0.0.1:0", &registry, &health);
  ASSERT_OK(server);
  clock.Advance(std::chrono::seconds(6));
  EXPECT_THAT(HttpGet((*server)->address(), "/livez", kTimeout),
              StatusIs(StatusCode::kUnavailable, HasSubstr("503")));
  health.Beat();
  EXPECT_OK(HttpGet((*server)->address(), "/livez", kTimeout));
}

// A thread that is idle is fine; one that works on one thing for too long is not.
TEST_F(AdminServerTest, LivenessEndsWithAThreadThatIsStuck) {
  auto server = AdminServer::Start("127.0.0.1:0", &registry, &health);
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
  auto server = HttpServer::Start(
      {.listen = "127.0.0.1:0", .max_connections = 16, .request_timeout = std::chrono::hours(1)},
      {{"/here", [] { return HttpAnswer{.body = "yes\n"}; }}});
  ASSERT_OK(server);
  const std::string at = (*server)->address();
  std::vector<int> silent;
  for (int i = 0; i < 48; ++i) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(at.substr(at.rfind(':') + 1))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    silent.push_back(socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect(silent.back(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    if (i % 2 == 0) {
      ASSERT_EQ(send(silent.back(), "GET /h", 6, MSG_NOSIGNAL), 6);
    }
    EXPECT_OK(HttpGet(at, "/here", kTimeout)) << i;
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
  auto server = AdminServer::Start("127.0.0.1:0", &registry, &health);
  ASSERT_OK(server);
  std::vector<std::thread> scrapes;
  std::atomic<int> scraped{0};
  for (size_t i = 0; i < HttpServer::kSlowAnswers; ++i) {
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
  EXPECT_EQ(scraped.load(), static_cast<int>(HttpServer::kSlowAnswers));
}

TEST(HttpRequestTest, ReadsARequestInPieces) {
  const std::string text = "GET /livez?a=b HTTP/1.1\r\nHost: a\r\n\r\n";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    HttpRequest request;
    const bool complete = request.Feed(text.substr(0, cut));
    EXPECT_EQ(complete, cut == text.size());
    if (!complete) {
      EXPECT_TRUE(request.Feed(text.substr(cut)));
    }
    EXPECT_EQ(request.error(), 0);
    EXPECT_EQ(request.method(), "GET");
    EXPECT_EQ(request.path(), "/livez");
  }
}

TEST(HttpRequestTest, TheWholeUrlNamesThePath) {
  for (const char* const target : {"http://a:1/livez?x", "HTTPS://a/livez", "/livez"}) {
    HttpRequest request;
    EXPECT_TRUE(request.Feed(std::string("GET ") + target + " HTTP/1.1\r\n\r\n"));
    EXPECT_EQ(request.path(), "/livez");
  }
}

TEST(HttpRequestTest, NamesWhatIsNoRequest) {
  const auto error = [](const std::string& head) {
    HttpRequest request;
    EXPECT_TRUE(request.Feed(head + "\r\n\r\n"));
    return request.error();
  };
  for (const char* bad : {"", "GET", "GET ", "GET /", "GET  HTTP/1.1", "GET http://a?x HTTP/1.1",
                          "GET x HTTP/1.1", "GET /livez FTP/1.1", "  "}) {
    EXPECT_EQ(error(bad), 400) << bad;
  }
  EXPECT_EQ(error("GET / HTTP/9.9"), 505);
  HttpRequest endless;
  size_t fed = 0;
  while (!endless.Feed("GET /aaaaaaaaaaaa")) ++fed;
  EXPECT_LE(fed, HttpRequest::kMaxBytes / 16);
  EXPECT_EQ(endless.error(), 431);
}

TEST_F(AdminServerTest, ServesMetricsAndNothingElse) {
  registry.AddGauge("cairn_x", "X.").Set(3);
  health.Export(&registry);
  auto server = AdminServer::Start("127.0.0.1:0", &registry, &health);
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

TEST_F(AdminServerTest, RefusesAddressesItCannotUse) {
  for (const char* listen :
       {"", "7401", "localhost:", ":1", "127.0.0.1:x", "127.0.0.1:1,127.0.0.1:2"}) {
    EXPECT_THAT(AdminServer::Start(listen, &registry, &health),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("admin.listen")))
        << listen;
  }
  auto first = AdminServer::Start("127.0.0.1:0", &registry, &health);
  ASSERT_OK(first);
  EXPECT_THAT(AdminServer::Start((*first)->address(), &registry, &health),
              StatusIs(StatusCode::kUnavailable, HasSubstr("cannot bind")));
}

}  // namespace
}  // namespace cairn::metrics
