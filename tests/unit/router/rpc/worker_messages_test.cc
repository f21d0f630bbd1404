#include "services/router/rpc/worker_messages.h"

#include <gmock/gmock.h>

#include "common/status/matchers.h"

namespace cairn::router {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

const std::vector<model::TokenId> kTokens = {3, 4, 5};

v1::GenerateRequest Sent(WorkerRequest request) {
  request.tokens = std::make_shared<const std::vector<model::TokenId>>(kTokens);
  v1::GenerateRequest message;
  ToProto(request, TimePoint(), std::chrono::system_clock::time_point(), &message);
  return message;
}

TEST(WorkerMessagesTest, ARequestSaysWhichHalfItIs) {
  EXPECT_FALSE(Sent({}).prefill_only());
  EXPECT_EQ(Sent({}).await_prefill_ms(), 0u);
  EXPECT_TRUE(Sent({.prefill_only = true}).prefill_only());
  EXPECT_EQ(Sent({.await_prefill = milliseconds(2500)}).await_prefill_ms(), 2500u);
}

TEST(WorkerMessagesTest, ADeadlineIsATimeThatIsLeft) {
  const v1::GenerateRequest sent = Sent({.deadline = TimePoint() + milliseconds(2500)});
  EXPECT_EQ(sent.timeout_ms(), 2500u);
  EXPECT_EQ(sent.deadline_unix_ms(), 2500) << "for workers of earlier versions";
  EXPECT_EQ(Sent({}).timeout_ms(), 0u);

  v1::GenerateRequest request;
  request.mutable_tokens()->add_ids(1);
  request.set_timeout_ms(2500);
  request.set_deadline_unix_ms(1);  // A caller whose clock is far behind.
  const auto got = FromProto(request, TimePoint(), std::chrono::system_clock::now());
  ASSERT_OK(got);
  EXPECT_EQ(got->deadline, TimePoint() + milliseconds(2500));
}

TEST(WorkerMessagesTest, RolesOfWorkers) {
  v1::WorkerInfo info;
  EXPECT_EQ(FromProto(info).role, WorkerRole::kBoth) << "a worker from before there were roles";
  info.set_role(v1::WORKER_ROLE_PREFILL);
  EXPECT_EQ(FromProto(info).role, WorkerRole::kPrefill);
  info.set_role(v1::WORKER_ROLE_DECODE);
  EXPECT_EQ(FromProto(info).role, WorkerRole::kDecode);
  info.set_role(static_cast<v1::WorkerRole>(77));
  EXPECT_EQ(FromProto(info).role, WorkerRole::kBoth);
}

TEST(WorkerMessagesTest, AReportKeepsAllThatItSays) {
  v1::LoadReport report;
  report.set_draining(true);
  report.set_cache_node_id("node");
  report.set_prefill_seconds(1);
  report.set_running_prompts(2);
  report.set_running_decodes(3);
  report.set_parked(4);
  report.set_kv_pages_free(5);
  report.set_kv_pages_total(6);
  report.set_prefill_tokens_per_second(7);
  report.set_drain_tokens_per_second(8);
  report.set_pair_seconds(9);
  report.set_step_seconds(10);
  report.set_decode_seconds(11);
  v1::QueuedRequests& queued = *report.add_queued();
  queued.set_priority(-1);
  queued.set_requests(12);
  queued.set_prefill_tokens(13);
  v1::LoadReport again;
  ToProto(FromProto(report), &again);
  EXPECT_EQ(again.SerializeAsString(), report.SerializeAsString());
}

TEST(WorkerMessagesTest, WhatOnlyAWorkerItselfHasIsRefusedByName) {
  const auto refused = [](const std::function<void(v1::GenerateRequest&)>& set) {
    v1::GenerateRequest request;
    request.mutable_tokens()->add_ids(1);
    set(request);
    const auto got = FromProto(request, TimePoint(), std::chrono::system_clock::now());
    EXPECT_EQ(got.status().code(), StatusCode::kInvalidArgument);
    return Message(got.status());
  };
  EXPECT_THAT(refused([](auto& r) { r.set_prefill_only(true); }), HasSubstr("'prefill_only'"));
  EXPECT_THAT(refused([](auto& r) { r.set_await_prefill_ms(1); }), HasSubstr("'await_prefill_ms'"));
}

}  // namespace
}  // namespace cairn::router
