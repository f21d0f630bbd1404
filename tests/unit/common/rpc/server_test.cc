#include "common/rpc/server.h"

#include <fmt/format.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <atomic>

#include "common/rpc/channel.h"
#include "common/status/matchers.h"

namespace cairn::rpc {
namespace {

// Answers with nothing.
class Nothing final : public CallReactor {
 public:
  explicit Nothing(std::unique_ptr<RawCall> call) : CallReactor(std::move(call)) {
    Finish(grpc::Status());
  }

 private:
  void OnDone() override { delete this; }
};

// A server that listens and does not serve yet, and a call that has begun at it.
class ServerTest : public ::testing::Test {
 protected:
  ServerTest() {
    server_.calls()->AddStream("/Nothing", [this](std::unique_ptr<RawCall> call) {
      opened_ = true;
      new Nothing(std::move(call));
    });
    EXPECT_OK(server_.Listen({.listen = "127.0.0.1:0"}));
    const auto channel = grpc::CreateChannel(server_.address(), grpc::InsecureChannelCredentials());
    EXPECT_TRUE(channel->WaitForConnected(
        CallDeadline(SteadyClock::Get().Now() + std::chrono::minutes(1))));
    grpc::GenericStub stub(channel);
    call_ = stub.PrepareCall(&context_, "/Nothing", &queue_);
    call_->StartCall(Tag(1));
    EXPECT_EQ(Next(), Tag(1));
    call_->Finish(&status_, Tag(2));
  }
  ~ServerTest() override {
    queue_.Shutdown();
    while (Next() != nullptr) {
    }
  }

  static void* Tag(intptr_t number) { return reinterpret_cast<void*>(number); }
  void* Next() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) ? tag : nullptr;
  }

  std::atomic<bool> opened_ = false;
  Server server_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::Status status_;
};

TEST_F(ServerTest, ACallThatComesBeforeServeWaitsForIt) {
  EXPECT_FALSE(opened_);
  server_.Serve();
  EXPECT_EQ(Next(), Tag(2));
  EXPECT_TRUE(opened_);
  EXPECT_TRUE(status_.ok()) << status_.error_message();
}

TEST_F(ServerTest, AServerThatEndsBeforeItServesEndsTheCallsThatWait) {
  server_.Shutdown(Duration(0));
  EXPECT_EQ(Next(), Tag(2));
  EXPECT_FALSE(opened_);
  EXPECT_FALSE(status_.ok());
}

}  // namespace
}  // namespace cairn::rpc
