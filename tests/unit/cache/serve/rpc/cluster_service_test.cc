// The answer of a node that is alone about its cluster, and how a call makes a node drain.

#include <gmock/gmock.h>

#include <limits>

#include "cairn/client/cluster.h"
#include "cairn/v1/cluster.grpc.pb.h"
#include "common/status/matchers.h"
#include "protocol/wire/convert.h"
#include "services/cache/serve/rpc/peer_convert.h"
#include "tests/unit/cache/serve/rpc/service_fixture.h"

namespace cairn::cache {
namespace {

using cairn::testing::StatusIs;
using ::testing::HasSubstr;

client::CallOptions Soon() { return {.deadline = std::chrono::seconds(60), .trace = ""}; }

TEST_F(ServiceTest, ANodeThatIsAloneNamesItself) {
  const auto node = client::ConnectCluster({.address = address});
  ASSERT_OK(node);
  const auto view = (*node)->Members(Soon());
  ASSERT_OK(view);
  EXPECT_EQ(view->cluster, "");
  EXPECT_EQ(view->self.node_id, "node");
  EXPECT_EQ(view->self.node_epoch, 9u);
  EXPECT_FALSE(view->self.version.empty());
  EXPECT_FALSE(view->self.leaving);
  EXPECT_TRUE(view->members.empty());
  rpc.draining = true;
  const auto later = (*node)->Members(Soon());
  ASSERT_OK(later);
  EXPECT_TRUE(later->self.leaving);
}

TEST_F(ServiceTest, LocateTellsWhatTheNodeItselfHolds) {
  const auto node = client::ConnectCluster({.address = address});
  ASSERT_OK(node);
  const std::vector<BlockKey> keys(5);
  const auto found = (*node)->Locate(cairn::Fingerprint(Spec()), keys, Soon());
  ASSERT_OK(found);
  ASSERT_EQ(found->nodes.size(), 1u);
  EXPECT_EQ(found->nodes[0].node_id, "node");
  EXPECT_EQ(found->nodes[0].blocks, 4u);
  EXPECT_EQ(found->nodes[0].memory_blocks, 1u);
  EXPECT_EQ(found->nodes[0].memory_bytes, 100u);
  EXPECT_EQ(found->silent_members, 0u);
  // All questions share one session, and it took no lease.
  ASSERT_OK((*node)->Locate(cairn::Fingerprint(Spec()), keys, Soon()));
  MutexLock lock(engine.mu);
  EXPECT_EQ(engine.open.size(), 1u);
  EXPECT_FALSE(engine.match_leased);
}

TEST_F(ServiceTest, LocateNamesTheFieldThatIsWrong) {
  const auto stub_of_cluster = v1::Cluster::NewStub(channel);
  const auto ask = [&](const v1::LocateRequest& request) {
    grpc::ClientContext context;
    v1::LocateResponse response;
    return stub_of_cluster->Locate(&context, request, &response);
  };
  v1::LocateRequest request;
  EXPECT_THAT(ask(request).error_message(), HasSubstr("fingerprint"));
  request.set_fingerprint(FingerprintBytes());
  EXPECT_THAT(ask(request).error_message(), HasSubstr("keys"));
  request.set_keys(std::string(32, 'k'));
  request.set_timeout_ms(1001);
  EXPECT_THAT(ask(request).error_message(), HasSubstr("timeout_ms': got 1001"));
  request.set_timeout_ms(1000);
  EXPECT_TRUE(ask(request).ok());
}

TEST_F(ServiceTest, ACallMakesTheProcessDrainOnce) {
  std::atomic<int> begun{0};
  rpc.begin_drain = [&] { ++begun; };
  const auto node = client::ConnectAdmin({.address = address});
  ASSERT_OK(node);
  const auto first = (*node)->Drain(Soon());
  ASSERT_OK(first);
  EXPECT_TRUE(*first);
  const auto second = (*node)->Drain(Soon());
  ASSERT_OK(second);
  EXPECT_FALSE(*second);
  EXPECT_EQ(begun, 1);
}

TEST_F(ServiceTest, OnlyAdministratorsMayDrain) {
  std::atomic<int> begun{0};
  rpc.begin_drain = [&] { ++begun; };
  rpc.options.admin.allow_loopback = false;
  const auto node = client::ConnectAdmin({.address = address});
  ASSERT_OK(node);
  EXPECT_THAT((*node)->Drain(Soon()), StatusIs(StatusCode::kPermissionDenied, ::testing::_));
  EXPECT_EQ(begun, 0);
}

// A shorter life hides blocks: who may not drop a namespace may not do that either.
TEST_F(ServiceTest, OnlyAdministratorsMayShortenTheLifeOfBlocks) {
  for (const bool admin_here : {true, false}) {
    rpc.options.admin.allow_loopback = admin_here;
    v1::OpenNamespaceRequest request;
    wire::ToProto(Spec(), request.mutable_spec());
    request.set_block_life_ms(1000);
    grpc::ClientContext context;
    v1::OpenNamespaceResponse response;
    ASSERT_TRUE(stub->OpenNamespace(&context, request, &response).ok());
    EXPECT_EQ(engine.last_life_change, admin_here ? LifeChange::kAny : LifeChange::kLonger);
  }
}

TEST(PeerConvertTest, WhatAMemberSaysOfItselfArrives) {
  PeerHello hello{.caller = {.cluster = "c", .id = "n", .incarnation = 5},
                  .epoch = 6,
                  .address = "h:1",
                  .host = "h",
                  .zone = "z",
                  .view_digest = 7,
                  .bumps_digest = 8,
                  .leaving = true,
                  .program = "1.2.3"};
  v1::HelloRequest proto;
  ToProto(hello, &proto);
  const auto back = ToHello(proto);
  ASSERT_OK(back);
  EXPECT_EQ(back->caller, hello.caller);
  EXPECT_EQ(back->program, "1.2.3");
  EXPECT_TRUE(back->leaving);
  // A member of a version before tells none.
  proto.clear_program();
  ASSERT_OK(ToHello(proto));
  EXPECT_EQ(ToHello(proto)->program, "");
  proto.set_program(std::string(129, 'v'));
  EXPECT_THAT(ToHello(proto), StatusIs(StatusCode::kInvalidArgument, HasSubstr("'program'")));
}

TEST(PeerConvertTest, AMatchCannotHoldMoreInMemoryThanItHas) {
  v1::PeerMatchResponse proto;
  ToProto({.blocks = 3, .bytes = 30, .seconds = 0.5, .memory_blocks = 2, .memory_bytes = 20},
          &proto);
  EXPECT_EQ(ToPeerMatch(proto).memory_blocks, 2u);
  proto.set_memory_blocks(4);
  proto.set_memory_bytes(31);
  proto.set_seconds(std::numeric_limits<double>::quiet_NaN());
  const PeerMatch match = ToPeerMatch(proto);
  EXPECT_EQ(match.memory_blocks, 3u);
  EXPECT_EQ(match.memory_bytes, 30u);
  EXPECT_EQ(match.seconds, 0);
}

}  // namespace
}  // namespace cairn::cache
