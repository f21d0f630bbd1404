#include "services/router/rpc/router_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "common/status/matchers.h"

namespace cairn::router {
namespace {

using ::testing::HasSubstr;

class RouterConfigTest : public ::testing::Test {
 protected:
  RouterConfigTest() : schema_("cairn-router", "") { Register(schema_, config_); }
  void SetUp() override {
    config_.model = "model.gguf";
    config_.workers = {"127.0.0.1:7500"};
  }
  void ExpectRefused(const std::string& setting) {
    const Status status = schema_.RunChecks();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(Message(status), HasSubstr(setting));
  }

  RouterConfig config_;
  config::Schema schema_;
};

TEST_F(RouterConfigTest, NeedsAModelAndWorkersOfEachAddressOne) {
  EXPECT_OK(schema_.RunChecks());
  config_.model.clear();
  ExpectRefused("model");
  config_.model = "model.gguf";
  config_.workers = {};
  ExpectRefused("workers");
  config_.workers = {"127.0.0.1:7500", "127.0.0.1:7500"};
  ExpectRefused("workers");
  config_.workers = {"nonsense"};
  ExpectRefused("workers");
}

TEST_F(RouterConfigTest, NetworkWithoutTlsNeedsToBeAllowed) {
  config_.listen = "0.0.0.0:7600";
  ExpectRefused("listen");
  config_.accept_plaintext = true;
  EXPECT_OK(schema_.RunChecks());
}

TEST_F(RouterConfigTest, HttpBeyondLoopbackNeedsTheSame) {
  config_.http.listen = "0.0.0.0:8000";
  ExpectRefused("http.listen");
  config_.tls.allow_plaintext_beyond_loopback = true;
  EXPECT_OK(schema_.RunChecks());
}

TEST_F(RouterConfigTest, APickerNeedsEnginesThatGatewaysFind) {
  config_.picker.listen = "127.0.0.1:9002";
  ExpectRefused("picker.listen: got '127.0.0.1:9002'");
  config_.workers = {"http://10.0.0.1:8000", "http://engine:8000"};
  ExpectRefused("workers: got 'http://engine:8000'");
  config_.workers = {"http://10.0.0.1:8000"};
  EXPECT_OK(schema_.RunChecks());
  config_.picker.listen = "0.0.0.0:9002";
  ExpectRefused("picker.listen");
  config_.tls.allow_plaintext_beyond_loopback = true;
  EXPECT_OK(schema_.RunChecks());
  config_.picker.all_bodies = 1 << 20;
  ExpectRefused("picker.all_bodies");
}

TEST_F(RouterConfigTest, TheDocumentIsTheTable) {
  std::ostringstream document;
  document << std::ifstream("docs/config-router.md").rdbuf();
  EXPECT_THAT(document.str(), HasSubstr(schema_.PrintMarkdown()))
      << "print it with cairn-router --print-config-docs";
}

}  // namespace
}  // namespace cairn::router
