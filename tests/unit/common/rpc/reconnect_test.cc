// A channel whose server is not there yet waits between attempts; ours come by our own clock.

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "common/rpc/channel.h"

namespace cairn::rpc {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

// False: that did not happen within a minute.
bool WaitForState(grpc::Channel& channel, grpc_connectivity_state wanted) {
  const gpr_timespec until = CallDeadline(SteadyClock::Get().Now() + seconds(60));
  for (;;) {
    const grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/true);
    if (state == wanted) return true;
    if (!channel.WaitForStateChange(state, until)) return false;
  }
}

TEST(ReconnectTest, TriesAgainWhenTheCallerSaysSo) {
  const std::string address =
      "unix:" + ::testing::TempDir() + "/reconnect_" + std::to_string(getpid()) + ".sock";
  // gRPC's own pause is longer than the test.
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 3'600'000);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 3'600'000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 3'600'000);
  const auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
  ASSERT_TRUE(WaitForState(*channel, GRPC_CHANNEL_TRANSIENT_FAILURE));

  grpc::AsyncGenericService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterAsyncGenericService(&service);
  const auto queue = builder.AddCompletionQueue();
  const auto server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);

  Reconnect reconnect(channel);
  reconnect.BeforeCall(TimePoint(hours(1)));
  EXPECT_TRUE(WaitForState(*channel, GRPC_CHANNEL_READY));

  server->Shutdown();
  queue->Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) {
  }
}

}  // namespace
}  // namespace cairn::rpc
