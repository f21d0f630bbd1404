#include "common/tracing/tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace cairn::tracing {
namespace {

constexpr char kCaller[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
constexpr char kUnsampled[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

class TracerTest : public ::testing::Test {
 protected:
  Tracer Make(double sample) {
    return Tracer(sample, /*seed=*/1, [this](Span span) { ended_.push_back(std::move(span)); });
  }
  std::vector<Span> ended_;
};

TEST_F(TracerTest, ASpanIsBelowItsCallers) {
  Tracer tracer = Make(0);
  const auto place = tracer.Begin(kCaller, /*entry=*/false);
  ASSERT_TRUE(place);
  EXPECT_EQ(Hex(place->own.trace), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(Hex(place->parent), "00f067aa0ba902b7");
  EXPECT_NE(place->own.span, place->parent);
  const Place below = tracer.Below(*place);
  EXPECT_EQ(below.own.trace, place->own.trace);
  EXPECT_EQ(below.parent, place->own.span);
  EXPECT_EQ(tracer.Begin(place->text(), false)->parent, place->own.span);
}

TEST_F(TracerTest, TheCallerDecidesWhetherThereAreSpans) {
  Tracer all = Make(1);
  EXPECT_FALSE(all.Begin(kUnsampled, true));
  EXPECT_FALSE(all.Begin("a-word-for-logs", true));
  EXPECT_FALSE(all.Begin("", false)) << "not the first of a trace";
  const auto first = all.Begin("", true);
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->own.sampled);
  EXPECT_EQ(first->parent, SpanId{});
}

TEST_F(TracerTest, AShareOfTheRequestsHasATrace) {
  Tracer some = Make(0.25);
  std::set<TraceId> traces;
  constexpr int kRequests = 10'000;
  for (int i = 0; i < kRequests; ++i) {
    if (const auto place = some.Begin("", true)) traces.insert(place->own.trace);
  }
  // Six standard deviations.
  EXPECT_NEAR(static_cast<double>(traces.size()), 0.25 * kRequests, 260);
  Tracer none = Make(0);
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(none.Begin("", true));
}

TEST_F(TracerTest, WhatEndsIsHandedOn) {
  Tracer tracer = Make(1);
  const Place place = *tracer.Begin("", true);
  tracer.End({.place = place, .name = "a", .begin = TimePoint(), .end = TimePoint()});
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(ended_[0].name, "a");
  EXPECT_EQ(ended_[0].place.own, place.own);
}

}  // namespace
}  // namespace cairn::tracing
