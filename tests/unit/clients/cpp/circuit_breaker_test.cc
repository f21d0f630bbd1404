#include "clients/cpp/src/circuit_breaker.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace cairn::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class CircuitBreakerTest : public ::testing::Test {
 protected:
  void Fail(int times) {
    for (int i = 0; i < times; ++i) {
      auto permit = breaker_.Ask();
      ASSERT_TRUE(permit);
      permit.Failed();
    }
  }
  void Succeed() {
    auto permit = breaker_.Ask();
    ASSERT_TRUE(permit);
    permit.Succeeded();
  }

  FakeClock clock_;
  CircuitBreaker breaker_{{.jitter = 0}, &clock_};
};

TEST_F(CircuitBreakerTest, OpensAfterFailuresInARow) {
  Fail(2);
  EXPECT_EQ(breaker_.state(), BreakerState::kClosed);
  Succeed();
  Fail(2);
  EXPECT_EQ(breaker_.state(), BreakerState::kClosed) << "a success between them ends the row";
  Fail(1);
  EXPECT_EQ(breaker_.state(), BreakerState::kOpen);
  EXPECT_FALSE(breaker_.Ask());
  EXPECT_EQ(breaker_.times_opened(), 1u);
  EXPECT_EQ(breaker_.rejected(), 1u);
}

TEST_F(CircuitBreakerTest, LetsOneProbeThroughAfterTheBackoff) {
  Fail(3);
  clock_.Advance(milliseconds(499));
  EXPECT_FALSE(breaker_.Ask());
  clock_.Advance(milliseconds(1));
  auto probe = breaker_.Ask();
  ASSERT_TRUE(probe);
  EXPECT_EQ(breaker_.state(), BreakerState::kHalfOpen);
  EXPECT_FALSE(breaker_.Ask()) << "one probe at a time";
  probe.Succeeded();
  EXPECT_EQ(breaker_.state(), BreakerState::kClosed);
  EXPECT_TRUE(breaker_.Ask());
}

TEST_F(CircuitBreakerTest, BackoffDoublesUpToItsLimit) {
  Fail(3);
  Duration backoff = milliseconds(500);
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(backoff - milliseconds(1));
    ASSERT_FALSE(breaker_.Ask()) << i;
    clock_.Advance(milliseconds(1));
    Fail(1);
    backoff = std::min<Duration>(backoff * 2, seconds(30));
  }
  EXPECT_EQ(backoff, seconds(30));
  // A success takes it back to the beginning.
  clock_.Advance(seconds(30));
  Succeed();
  Fail(3);
  clock_.Advance(milliseconds(500));
  EXPECT_TRUE(breaker_.Ask());
}

TEST_F(CircuitBreakerTest, AProbeThatWasCancelledMakesRoomForAnother) {
  Fail(3);
  clock_.Advance(milliseconds(500));
  { auto cancelled = breaker_.Ask(); }
  EXPECT_EQ(breaker_.state(), BreakerState::kHalfOpen);
  EXPECT_TRUE(breaker_.Ask());
}

TEST_F(CircuitBreakerTest, CallsFromBeforeAChangeNoLongerCount) {
  auto slow = breaker_.Ask();
  auto also_slow = breaker_.Ask();
  Fail(3);
  slow.Succeeded();
  EXPECT_EQ(breaker_.state(), BreakerState::kOpen) << "an old success does not close it";
  clock_.Advance(milliseconds(500));
  Succeed();
  Fail(2);
  also_slow.Failed();
  EXPECT_EQ(breaker_.state(), BreakerState::kClosed) << "nor does an old failure open it";
}

TEST_F(CircuitBreakerTest, ResetClosesItAtOnce) {
  Fail(3);
  breaker_.Reset();
  EXPECT_EQ(breaker_.state(), BreakerState::kClosed);
  Fail(3);
  clock_.Advance(milliseconds(500));
  EXPECT_TRUE(breaker_.Ask()) << "the back-off starts small again";
}

TEST_F(CircuitBreakerTest, AMovedPermitReportsOnce) {
  auto a = breaker_.Ask();
  auto b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): this state is what is tested.
  b.Failed();
  b.Failed();
  Fail(1);
  EXPECT_EQ(breaker_.state(), BreakerState::kClosed);
}

TEST(CircuitBreakerJitterTest, StretchesTheBackoff) {
  FakeClock clock;
  CircuitBreaker breaker({.failures = 1, .jitter = 1.0, .seed = 7}, &clock);
  breaker.Ask().Failed();
  clock.Advance(milliseconds(500));
  EXPECT_FALSE(breaker.Ask());
  clock.Advance(milliseconds(500));
  EXPECT_TRUE(breaker.Ask());
}

TEST(CircuitBreakerThreadsTest, ManyCallersGetOneProbe) {
  FakeClock clock;
  CircuitBreaker breaker({.failures = 1, .jitter = 0}, &clock);
  breaker.Ask().Failed();
  clock.Advance(milliseconds(500));
  std::atomic<int> probes{0};
  Mutex mu;
  std::vector<CircuitBreaker::Permit> kept;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      auto permit = breaker.Ask();
      if (!permit) return;
      ++probes;
      MutexLock lock(mu);
      kept.push_back(std::move(permit));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(probes, 1);
}

TEST(CountsAsFailureTest, OnlyADeadOrHangingNodeCounts) {
  for (int code = 0; code <= 16; ++code) {
    const auto c = static_cast<StatusCode>(code);
    const bool expected = c == StatusCode::kUnavailable || c == StatusCode::kDeadlineExceeded ||
                          c == StatusCode::kInternal || c == StatusCode::kUnknown;
    EXPECT_EQ(CountsAsFailure(c), expected) << code;
  }
}

}  // namespace
}  // namespace cairn::client
