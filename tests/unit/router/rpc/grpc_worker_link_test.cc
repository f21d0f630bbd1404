#include "services/router/rpc/grpc_worker_link.h"

#include <gmock/gmock.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

#include "cairn/v1/worker.grpc.pb.h"
#include "common/status/matchers.h"
#include "services/router/rpc/completion_poller.h"

namespace cairn::router {
namespace {

using cairn::testing::StatusIs;
using ::testing::_;

struct End {
  Status status;
  bool reached = true;
};

class Observer final : public WorkerAnswerObserver {
 public:
  std::future<End> end() { return end_.get_future(); }
  void OnToken(model::TokenId, std::string_view) override { ADD_FAILURE(); }
  void OnDone(const WorkerAnswer&) override { ADD_FAILURE(); }
  void OnError(const Status& status) override { end_.set_value({status, true}); }
  void OnUnreached(const Status& status) override { end_.set_value({status, false}); }

 private:
  std::promise<End> end_;
};

class GrpcWorkerLinkTest : public ::testing::Test {
 protected:
  // All of its methods answer UNIMPLEMENTED.
  std::unique_ptr<grpc::Server> Serve() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    auto server = builder.BuildAndStart();
    EXPECT_NE(server, nullptr);
    return server;
  }
  End Ask() {
    auto links = GrpcWorkerLinks({}, &poller_);
    EXPECT_OK(links);
    const auto link = (*links)("127.0.0.1:" + std::to_string(port_));
    WorkerRequest request;
    request.tokens = std::make_shared<const std::vector<model::TokenId>>(3, 1);
    auto observer = std::make_shared<Observer>();
    auto end = observer->end();
    const auto call = link->Generate(request, observer);
    return end.get();
  }

  v1::Worker::Service service_;
  int port_ = 0;
  CompletionPoller poller_{1};
};

TEST_F(GrpcWorkerLinkTest, NobodyListens) {
  Serve().reset();
  const End end = Ask();
  EXPECT_THAT(end.status, StatusIs(StatusCode::kUnavailable, _));
  EXPECT_FALSE(end.reached);
}

TEST_F(GrpcWorkerLinkTest, AServerThatGeneratesNothingWasReached) {
  const auto server = Serve();
  const End end = Ask();
  EXPECT_THAT(end.status, StatusIs(StatusCode::kUnavailable, _));
  EXPECT_TRUE(end.reached);
}

}  // namespace
}  // namespace cairn::router
