#include "common/tracing/trace_context.h"

#include <gtest/gtest.h>

namespace cairn::tracing {
namespace {

constexpr char kExample[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceContextTest, TheTextComesBack) {
  const auto context = ParseTraceParent(kExample);
  ASSERT_TRUE(context);
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(Hex(context->trace), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(Hex(context->span), "00f067aa0ba902b7");
  EXPECT_EQ(TraceParent(*context), kExample);
  TraceContext other = *context;
  other.sampled = false;
  EXPECT_EQ(ParseTraceParent(TraceParent(other)), other);
}

TEST(TraceContextTest, OnlyOneFlagCounts) {
  std::string text = kExample;
  text.replace(53, 2, "ff");
  EXPECT_TRUE(ParseTraceParent(text)->sampled);
  text.replace(53, 2, "fe");
  EXPECT_FALSE(ParseTraceParent(text)->sampled);
}

TEST(TraceContextTest, ALaterVersionMayHaveMoreToSay) {
  std::string text = kExample;
  text[1] = '1';
  EXPECT_TRUE(ParseTraceParent(text));
  EXPECT_TRUE(ParseTraceParent(text + "-what-comes-then"));
  EXPECT_FALSE(ParseTraceParent(text + "x"));
  EXPECT_FALSE(ParseTraceParent(std::string(kExample) + "-more")) << "version 0 has no more";
}

TEST(TraceContextTest, WhatHasAnotherFormIsNoTrace) {
  for (const char* text : {
           "",
           "trace-77",
           "00",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
           "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7_01",
           "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
           "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
           "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
       }) {
    EXPECT_FALSE(ParseTraceParent(text)) << text;
  }
  EXPECT_FALSE(ParseTraceParent(std::string(1 << 20, '0')));
}

}  // namespace
}  // namespace cairn::tracing
