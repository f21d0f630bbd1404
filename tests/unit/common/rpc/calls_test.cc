// The parts that every method gets from the server: admission, numbers, words; and the health
// service.

#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/sync_stream.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/concurrency/executor.h"
#include "common/concurrency/ticker.h"
#include "common/rpc/call_metrics.h"
#include "common/rpc/call_server.h"
#include "common/rpc/deferred_call.h"
#include "common/rpc/health_service.h"
#include "common/rpc/streamed_call.h"
#include "common/rpc/trace.h"
#include "common/rpc/unary_call.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace cairn::rpc {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
// Any two messages do: no message of ours is known here.
using Request = grpc::health::v1::HealthCheckRequest;
using Response = grpc::health::v1::HealthCheckResponse;

// A kitchen that cooks at once, and whose oven is full.
class CallsTest : public ::testing::Test {
 protected:
  CallsTest() {
    context_.clock = &SteadyClock::Get();
    context_.metrics = &metrics_;
    context_.gate = &gate_;
    context_.process = "kitchen";
    context_.limit = "kitchen.cooks";
    AddUnary<Request, Response>(
        &calls_, &context_, "Kitchen", "Cook", nullptr,
        [this](Call& call, const Request& request, Response* response) -> Status {
          trace_ = call.trace();
          if (request.service() == "soup") return InvalidArgument("service: got 'soup'");
          response->set_status(Response::SERVING);
          return OkStatus();
        });
    AddUnary<Request, Response>(
        &calls_, &context_, "Kitchen", "Bake", &oven_,
        [](Call&, const Request&, Response*) -> Status { return OkStatus(); });
    AddDeferred<Request, Response>(
        &calls_, &context_, "Kitchen", "Deliver", nullptr,
        [this](auto& call, const Request& request) {
          const std::string meal = request.service();
          if (meal == "salad") return Deliver(call, meal);
          EXPECT_TRUE(waiter_.Post([&call, meal] { Deliver(call, meal); }).ok());
        });
    AddStreamed<Request, Response>(
        &calls_, &context_, "Kitchen", "Serve", &waiter_,
        [this](Call&, const Request& request, const auto& write) { return Serve(request, write); });
    AddStreamed<Request, Response>(
        &calls_, &context_, "Kitchen", "ServeLate", &oven_,
        [](Call&, const Request&, const auto&) -> Status { return OkStatus(); });
    health_.AddTo(&calls_);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    calls_.Register(&builder);
    server_ = builder.BuildAndStart();
    calls_.Start();
    channel_ =
        grpc::CreateChannel(fmt::format("127.0.0.1:{}", port), grpc::InsecureChannelCredentials());
  }
  ~CallsTest() override {
    health_.EndStreams();
    server_->Shutdown(std::chrono::system_clock::now());
    calls_.Stop();
  }

  static void Deliver(DeferredCall<Request, Response>& call, const std::string& meal) {
    Response response;
    response.set_status(Response::SERVING);
    call.Answer(meal == "burnt" ? Errorf(StatusCode::kDataLoss, "burnt") : OkStatus(), response);
  }
  // Serves three courses; "buffet": until nobody takes any.
  static Status Serve(const Request& request, const std::function<bool(const Response&)>& write) {
    const bool buffet = request.service() == "buffet";
    Response course;
    for (int i = 0; buffet || i < 3; ++i) {
      course.set_status(static_cast<Response::ServingStatus>(i % 3));
      if (!write(course)) return Gone();
    }
    return request.service() == "burnt" ? Errorf(StatusCode::kDataLoss, "burnt") : OkStatus();
  }
  // The messages that a client reads of a stream, until it ends or `courses` have come.
  grpc::Status Eat(const std::string& method, const std::string& service, std::vector<int>* courses,
                   size_t at_most = 100) {
    const grpc::internal::RpcMethod rpc(method.c_str(), grpc::internal::RpcMethod::SERVER_STREAMING,
                                        channel_);
    grpc::ClientContext context;
    Request request;
    request.set_service(service);
    const std::unique_ptr<grpc::ClientReader<Response>> reader(
        grpc::internal::ClientReaderFactory<Response>::Create(channel_.get(), rpc, &context,
                                                              request));
    Response course;
    while (courses->size() < at_most && reader->Read(&course)) courses->push_back(course.status());
    if (courses->size() == at_most) context.TryCancel();
    while (reader->Read(&course)) {
    }
    return reader->Finish();
  }

  grpc::Status Ask(const std::string& method, const std::string& service = "",
                   const std::string& trace = "", const std::string& another = "") {
    const grpc::internal::RpcMethod rpc(method.c_str(), grpc::internal::RpcMethod::NORMAL_RPC,
                                        channel_);
    grpc::ClientContext context;
    if (!trace.empty()) context.AddMetadata(kTraceMetadata, trace);
    if (!another.empty()) context.AddMetadata(kTraceMetadata, another);
    Request request;
    request.set_service(service);
    Response response;
    return grpc::internal::BlockingUnaryCall(channel_.get(), rpc, &context, request, &response);
  }

  metrics::Registry registry_;
  CallMetrics metrics_{&registry_};
  Gate gate_{1};
  Context context_;
  // Full from the start: whatever is posted to it is refused.
  struct Full final : Executor {
    Status Post(std::function<void()>) override {
      return Errorf(StatusCode::kResourceExhausted, "oven: full");
    }
  } oven_;
  ThreadPool waiter_{{.name = "waiter"}};
  HealthService health_{&context_, {"Kitchen"}};
  CallServer calls_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::string trace_;
};

TEST_F(CallsTest, EachMethodHasItsRowFromTheStart) {
  EXPECT_THAT(registry_.Scrape(),
              HasSubstr("cairn_rpc_requests_total{code=\"OK\",method=\"Bake\"} 0\n"));
  EXPECT_TRUE(Ask("/Kitchen/Cook").ok());
  EXPECT_EQ(Ask("/Kitchen/Cook", "soup").error_message(), "service: got 'soup'");
  const std::string scrape = registry_.Scrape();
  for (const char* line : {"cairn_rpc_requests_total{code=\"OK\",method=\"Cook\"} 1\n",
                           "cairn_rpc_requests_total{code=\"InvalidArgument\",method=\"Cook\"} 1\n",
                           "cairn_rpc_in_flight_requests{method=\"Cook\"} 0\n",
                           "cairn_rpc_duration_seconds_count{method=\"Cook\"} 2\n"}) {
    EXPECT_THAT(scrape, HasSubstr(line));
  }
}

TEST_F(CallsTest, TheLengthOfOpenEndedCallsIsNotCounted) {
  Method* const watch = metrics_.Add("Kitchen", "Watch", Life::kOpenEnded);
  EXPECT_EQ(watch->path(), "/Kitchen/Watch");
  watch->Begin();
  watch->End(StatusCode::kCancelled, 3600);
  const std::string scrape = registry_.Scrape();
  EXPECT_THAT(scrape, HasSubstr("{code=\"Cancelled\",method=\"Watch\"} 1\n"));
  EXPECT_THAT(scrape, Not(HasSubstr("cairn_rpc_duration_seconds_count{method=\"Watch\"}")));
}

TEST_F(CallsTest, RefusalsNameTheProcessAndItsLimit) {
  {
    const Gate::Pass inside = gate_.Enter();
    const grpc::Status full = Ask("/Kitchen/Cook");
    EXPECT_EQ(full.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(full.error_message(), "the kitchen already works on 1 calls (kitchen.cooks)");
  }
  EXPECT_EQ(Ask("/Kitchen/Bake").error_message(), "oven: full");
  gate_.Close();
  const grpc::Status closed = Ask("/Kitchen/Cook");
  EXPECT_EQ(closed.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(closed.error_message(), "the kitchen is shutting down");
  const std::string scrape = registry_.Scrape();
  EXPECT_THAT(scrape, HasSubstr("cairn_rpc_rejected_total{reason=\"overload\"} 2\n"));
  EXPECT_THAT(scrape, HasSubstr("cairn_rpc_rejected_total{reason=\"draining\"} 1\n"));
}

TEST_F(CallsTest, ATraceReachesTheHandlerOrIsRefused) {
  EXPECT_TRUE(Ask("/Kitchen/Cook", "", "trace-7").ok());
  EXPECT_EQ(trace_, "trace-7");
  EXPECT_THAT(Ask("/Kitchen/Cook", "", "a b").error_message(),
              HasSubstr("metadata x-cairn-trace: got 3 characters"));
  EXPECT_THAT(Ask("/Kitchen/Cook", "", "trace-7", "trace-8").error_message(),
              HasSubstr("metadata x-cairn-trace: got 2 values, expected one"));
}

TEST_F(CallsTest, AnAnswerMayComeAtOnceOrLaterFromAnotherThread) {
  EXPECT_TRUE(Ask("/Kitchen/Deliver", "salad").ok());
  EXPECT_TRUE(Ask("/Kitchen/Deliver", "roast").ok());
  EXPECT_EQ(Ask("/Kitchen/Deliver", "burnt").error_message(), "burnt");
  const std::string scrape = registry_.Scrape();
  EXPECT_THAT(scrape, HasSubstr("cairn_rpc_requests_total{code=\"OK\",method=\"Deliver\"} 2\n"));
  EXPECT_THAT(scrape, HasSubstr("{code=\"DataLoss\",method=\"Deliver\"} 1\n"));
}

TEST_F(CallsTest, AStreamBringsEachMessageInItsOrderThenTheStatus) {
  std::vector<int> courses;
  EXPECT_TRUE(Eat("/Kitchen/Serve", "", &courses).ok());
  EXPECT_EQ(courses, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(Eat("/Kitchen/Serve", "burnt", &courses).error_message(), "burnt");
  EXPECT_EQ(courses, (std::vector<int>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(Eat("/Kitchen/ServeLate", "", &courses).error_message(), "oven: full");
}

TEST_F(CallsTest, AHandlerLearnsThatItsReaderIsGone) {
  std::vector<int> courses;
  EXPECT_EQ(Eat("/Kitchen/Serve", "buffet", &courses, 10).error_code(),
            grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(gate_.WaitEmpty(SteadyClock::Get().Now() + std::chrono::seconds(60)));
  // The only thread of the waiters is free again.
  courses.clear();
  EXPECT_TRUE(Eat("/Kitchen/Serve", "", &courses).ok());
}

TEST_F(CallsTest, ShuttingDownEndsAStreamThatNobodyReads) {
  const grpc::internal::RpcMethod rpc("/Kitchen/Serve", grpc::internal::RpcMethod::SERVER_STREAMING,
                                      channel_);
  grpc::ClientContext context;
  Request request;
  request.set_service("buffet");
  const std::unique_ptr<grpc::ClientReader<Response>> reader(
      grpc::internal::ClientReaderFactory<Response>::Create(channel_.get(), rpc, &context,
                                                            request));
  Response course;
  ASSERT_TRUE(reader->Read(&course));
  server_->Shutdown(std::chrono::system_clock::now());
  calls_.Stop();  // Returns only if the handler was told.
  EXPECT_EQ(gate_.inside(), 0u);
}

TEST_F(CallsTest, HealthKnowsTheServicesItWasGiven) {
  const auto stub = grpc::health::v1::Health::NewStub(channel_);
  const auto check = [&](const std::string& service) {
    grpc::ClientContext context;
    Request request;
    request.set_service(service);
    Response response;
    const grpc::Status status = stub->Check(&context, request, &response);
    return status.ok() ? Response::ServingStatus_Name(response.status()) : status.error_message();
  };
  EXPECT_EQ(check(""), "SERVING");
  EXPECT_EQ(check("Kitchen"), "SERVING");
  EXPECT_EQ(check("Garden"), "no service 'Garden'");
  context_.draining = true;
  EXPECT_EQ(check("Kitchen"), "NOT_SERVING");
}

TEST_F(CallsTest, AWatchOfHealthIsToldOfTheEnd) {
  const auto stub = grpc::health::v1::Health::NewStub(channel_);
  grpc::ClientContext context;
  const auto reader = stub->Watch(&context, Request());
  Response response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), Response::SERVING);
  // A tick may come while the first answer is still being written: the next one tries again.
  const Ticker ticker(std::chrono::milliseconds(5), [this] { health_.Tick(); });
  context_.draining = true;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), Response::NOT_SERVING);
  health_.EndStreams();
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_message(), "the kitchen is shutting down");
}

}  // namespace
}  // namespace cairn::rpc
