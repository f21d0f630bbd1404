// The picker over real gRPC, before a router that a test plays.
#include "services/router/picker/picker_edge.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "common/status/matchers.h"
#include "envoy/service/ext_proc/v3/external_processor.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/support/fake_router.h"

namespace cairn::router {
namespace {

namespace ext_proc = ::envoy::service::ext_proc::v3;
namespace health = ::grpc::health::v1;
using std::chrono::seconds;

class CountedLease final : public PickLease {
 public:
  CountedLease(std::atomic<int>* open, std::promise<void>* ended) : open_(open), ended_(ended) {
    ++*open_;
  }
  ~CountedLease() override {
    --*open_;
    if (ended_ != nullptr) ended_->set_value();
  }
  void Generated(uint32_t) override {}
  void Completed() override {}

 private:
  std::atomic<int>* const open_;
  std::promise<void>* const ended_;
};

class PickerEdgeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    router_.on_pick = [this](PickAsk) -> std::variant<FollowedPick, GenerateError> {
      return FollowedPick{.pick = {.worker = "http://10.0.0.1:80"},
                          .lease = std::make_unique<CountedLease>(&open_, ended_)};
    };
    auto edge = PickerEdge::Start({.listen = "127.0.0.1:0"}, {}, /*relay=*/false,
                                  /*max_endpoints=*/3, &router_, /*reads=*/nullptr, &call_metrics_,
                                  nullptr);
    ASSERT_OK(edge);
    edge_ = *std::move(edge);
    channel_ = grpc::CreateChannel(edge_->address(), grpc::InsecureChannelCredentials());
    stub_ = ext_proc::ExternalProcessor::NewStub(channel_);
  }

  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<
        grpc::ClientReaderWriter<ext_proc::ProcessingRequest, ext_proc::ProcessingResponse>>
        io;
  };
  std::unique_ptr<Stream> Open() {
    auto stream = std::make_unique<Stream>();
    stream->context.set_deadline(std::chrono::system_clock::now() + seconds(120));
    stream->io = stub_->Process(&stream->context);
    return stream;
  }
  // GET /v1/models: decided at once.
  static ext_proc::ProcessingRequest Head() {
    ext_proc::ProcessingRequest message;
    ext_proc::HttpHeaders& headers = *message.mutable_request_headers();
    for (const auto& [name, value] :
         {std::pair(":method", "GET"), std::pair(":path", "/v1/models")}) {
      ext_proc::HeaderValue& header = *headers.mutable_headers()->add_headers();
      header.set_key(name);
      header.set_raw_value(value);
    }
    headers.set_end_of_stream(true);
    return message;
  }
  static std::string EndpointOf(const ext_proc::ProcessingResponse& reply) {
    const auto& mutation = reply.request_headers().response().header_mutation();
    return mutation.set_headers_size() == 1 ? mutation.set_headers(0).header().raw_value() : "";
  }
  health::HealthCheckResponse::ServingStatus Health(const std::string& service) {
    grpc::ClientContext context;
    health::HealthCheckRequest request;
    request.set_service(service);
    health::HealthCheckResponse response;
    const auto status = health::Health::NewStub(channel_)->Check(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.status();
  }

  FakeRouter router_;
  std::atomic<int> open_{0};
  std::promise<void>* ended_ = nullptr;
  // A reply that the client has may come before what the router does after it.
  static bool Eventually(const std::function<bool()>& what) {
    const auto end = std::chrono::steady_clock::now() + seconds(120);
    while (!what()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  metrics::Registry registry_;
  rpc::CallMetrics call_metrics_{&registry_};
  std::unique_ptr<PickerEdge> edge_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<ext_proc::ExternalProcessor::Stub> stub_;
};

TEST_F(PickerEdgeTest, ARequestCountsUntilItsStreamEnds) {
  const auto stream = Open();
  ASSERT_TRUE(stream->io->Write(Head()));
  ext_proc::ProcessingResponse reply;
  ASSERT_TRUE(stream->io->Read(&reply));
  EXPECT_EQ(EndpointOf(reply), "10.0.0.1:80");
  EXPECT_EQ(open_, 1);
  EXPECT_EQ(edge_->GetStats().open_streams, 1u);
  stream->io->WritesDone();
  EXPECT_FALSE(stream->io->Read(&reply));
  EXPECT_TRUE(stream->io->Finish().ok());
  EXPECT_TRUE(Eventually([&] { return open_ == 0; }));
  EXPECT_TRUE(Eventually([&] { return edge_->GetStats().open_streams == 0; }));
  EXPECT_EQ(edge_->GetStats().results[static_cast<size_t>(PickResult::kPicked)], 1u);
}

TEST_F(PickerEdgeTest, AGatewayThatGoesEndsItsRequest) {
  std::promise<void> ended;
  ended_ = &ended;
  const auto stream = Open();
  ASSERT_TRUE(stream->io->Write(Head()));
  ext_proc::ProcessingResponse reply;
  ASSERT_TRUE(stream->io->Read(&reply));
  stream->context.TryCancel();
  EXPECT_EQ(ended.get_future().wait_for(seconds(120)), std::future_status::ready);
  EXPECT_EQ(stream->io->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(PickerEdgeTest, AnErrorIsTheLastAnswer) {
  router_.on_pick = [](PickAsk) -> std::variant<FollowedPick, GenerateError> {
    return GenerateError{.status = Errorf(StatusCode::kUnavailable, "none")};
  };
  const auto stream = Open();
  ASSERT_TRUE(stream->io->Write(Head()));
  ext_proc::ProcessingResponse reply;
  ASSERT_TRUE(stream->io->Read(&reply));
  EXPECT_EQ(reply.immediate_response().status().code(), 503);
  EXPECT_FALSE(stream->io->Read(&reply));
  EXPECT_TRUE(stream->io->Finish().ok());
}

TEST_F(PickerEdgeTest, WhatIsNoMessageEndsTheStream) {
  grpc::GenericStub generic(channel_);
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(120));
  void* tag = nullptr;
  bool ok = false;
  const auto call =
      generic.PrepareCall(&context, "/envoy.service.ext_proc.v3.ExternalProcessor/Process", &queue);
  call->StartCall(&queue);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  const grpc::Slice junk("\xff\xff\xff");
  call->Write(grpc::ByteBuffer(&junk, 1), nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::Status status;
  call->Finish(&status, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  queue.Shutdown();
  EXPECT_FALSE(queue.Next(&tag, &ok));
}

TEST_F(PickerEdgeTest, DrainRefusesNewRequestsAndKeepsThePickedOnes) {
  EXPECT_EQ(Health("readiness"), health::HealthCheckResponse::SERVING);
  EXPECT_EQ(Health(kPickerService), health::HealthCheckResponse::SERVING);
  const auto picked = Open();
  ASSERT_TRUE(picked->io->Write(Head()));
  ext_proc::ProcessingResponse reply;
  ASSERT_TRUE(picked->io->Read(&reply));
  edge_->StartDrain();
  EXPECT_EQ(Health("readiness"), health::HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Open()->io->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  ext_proc::ProcessingRequest answer;
  answer.mutable_response_headers()->set_end_of_stream(true);
  ASSERT_TRUE(picked->io->Write(answer));
  ASSERT_TRUE(picked->io->Read(&reply));
  EXPECT_TRUE(reply.has_response_headers());
  EXPECT_TRUE(Eventually([&] { return open_ == 0; }));
}

}  // namespace
}  // namespace cairn::router
