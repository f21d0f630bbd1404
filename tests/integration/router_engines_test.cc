// A real router before engines with OpenAI's API, over gRPC and with a model's file: what
// tests/router/test_engines.py cannot ask.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/concurrency/mutex.h"
#include "common/http/server.h"
#include "common/status/matchers.h"
#include "tests/integration/router_support.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

// An engine that is well and says nothing. Thread-safe.
class QuietEngine final : public http::Handler {
 public:
  QuietEngine() {
    http::Server::Options options;
    options.listen = "127.0.0.1:0";
    options.field = "listen";
    auto server = http::Server::Start(std::move(options), this);
    EXPECT_OK(server);
    server_ = *std::move(server);
  }
  std::string url() const { return "http://" + server_->address(); }

  void Handle(http::Request request, std::shared_ptr<http::Responder> responder) override {
    if (request.path == "/v1/models") {
      responder->Send({.body = R"({"data":[{"id":"quiet","max_model_len":512}]})"});
    } else if (request.path == "/health") {
      responder->Send({.body = "{}"});
    } else {
      responder->Send({.status = 500, .body = "{}"});
    }
  }
  http::Response Refuse(int status, const std::string& message) override {
    return {.status = status, .body = message};
  }

 private:
  std::unique_ptr<http::Server> server_;
};

class RouterEnginesTest : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& args) {
    auto router = RouterProcess::Start({a_.url(), b_.url()}, args);
    ASSERT_OK(router);
    router_ = *std::move(router);
    ASSERT_TRUE(router_->WaitReady(2));
  }
  QuietEngine a_, b_;
  std::unique_ptr<RouterProcess> router_;
};

TEST_F(RouterEnginesTest, PicksAndTellsOverGrpcButDoesNotGenerate) {
  Start({"--model", ""});
  const auto pick = router_->Pick(RouterProcess::Request(100));
  ASSERT_OK(pick);
  EXPECT_TRUE(pick->worker() == a_.url() || pick->worker() == b_.url());
  EXPECT_EQ(pick->prompt_tokens(), 100u);
  EXPECT_EQ(pick->candidates_size(), 2);
  const auto info = router_->GetInfo();
  ASSERT_OK(info);
  EXPECT_EQ(info->model(), "quiet");
  EXPECT_EQ(info->context_tokens(), 512u);
  EXPECT_EQ(info->workers(0).model(), "quiet");
  const Status status = router_->Generate(RouterProcess::Request(100)).status;
  EXPECT_THAT(status, StatusIs(StatusCode::kUnimplemented, HasSubstr("HTTP")));
}

TEST_F(RouterEnginesTest, AModelsFileMakesTheTokens) {
  v1::GenerateRequest request;
  request.set_raw_text(std::string(400, 'x'));
  Start({});
  const auto tokens = router_->Pick(request);
  ASSERT_OK(tokens);
  Start({"--engines.tokens", "text"});
  const auto text = router_->Pick(request);
  ASSERT_OK(text);
  // An empty name of a model and its end, then the text: four bytes for each token.
  EXPECT_EQ(text->prompt_tokens(), 101u);
  EXPECT_NE(tokens->prompt_tokens(), text->prompt_tokens());
}

}  // namespace
}  // namespace cairn::testing
