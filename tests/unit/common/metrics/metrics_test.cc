#include "common/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/metrics/admin_server.h"
#include "common/status/matchers.h"

namespace cairn::metrics {
namespace {

using cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Duration kTimeout = std::chrono::seconds(10);

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
