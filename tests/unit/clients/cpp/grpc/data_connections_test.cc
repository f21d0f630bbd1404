#include "clients/cpp/src/grpc/data_connections.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <optional>

namespace cairn::client {
namespace {

// Channels connect when they are used, which these are not.
std::vector<std::shared_ptr<grpc::Channel>> Channels(size_t count) {
  std::vector<std::shared_ptr<grpc::Channel>> channels(count);
  for (auto& channel : channels)
    channel = grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials());
  return channels;
}

TEST(DataConnectionsTest, OneCallAfterTheOtherKeepsToTheFirst) {
  DataConnections connections(Channels(3));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(connections.Take().index(), 0u);
}

TEST(DataConnectionsTest, CallsAtATimeAreSpreadEvenly) {
  DataConnections connections(Channels(2));
  std::optional<DataConnections::Use> first = connections.Take();
  const DataConnections::Use second = connections.Take();
  EXPECT_EQ(first->index(), 0u);
  EXPECT_EQ(second.index(), 1u);
  EXPECT_NE(first->stub(), second.stub());
  const DataConnections::Use third = connections.Take();
  EXPECT_EQ(third.index(), 0u);
  const DataConnections::Use fourth = connections.Take();
  EXPECT_EQ(fourth.index(), 1u);
  first.reset();
  EXPECT_EQ(connections.Take().index(), 0u);
}

TEST(DataConnectionsTest, AMovedUseCountsOnce) {
  DataConnections connections(Channels(2));
  {
    DataConnections::Use use = connections.Take();
    const DataConnections::Use moved = std::move(use);
    EXPECT_EQ(connections.Take().index(), 1u);
  }
  EXPECT_EQ(connections.Take().index(), 0u);
}

}  // namespace
}  // namespace cairn::client
