#include "services/router/rpc/router_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "common/status/matchers.h"
#include "services/router/rpc/router_memory.h"

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
  config_.workers = {"Host:7500", "host:7500"};
  ExpectRefused("workers");
  config_.workers = {"nonsense"};
  ExpectRefused("workers");
}

TEST_F(RouterConfigTest, WorkersMayBeNamesThatDnsKnows) {
  config_.workers = {"dns:_grpc._tcp.workers.kv.svc", "dns:more.kv.svc:7500", "127.0.0.1:7500"};
  EXPECT_OK(schema_.RunChecks());
  EXPECT_FALSE(config_.relays());
  for (const char* const wrong : {"dns:workers", "dns:", "dns:_grpc._tcp.workers:7500",
                                  "dns:http://workers:8000", "dns:unix:/path"}) {
    config_.workers = {"127.0.0.1:7500", wrong};
    ExpectRefused("workers");
  }
  config_.workers = {"dns:http://engines.kv.svc:8000"};
  config_.model.clear();
  EXPECT_TRUE(config_.relays());
  config_.picker.listen = "127.0.0.1:9002";
  EXPECT_OK(schema_.RunChecks());
  // Their targets are names.
  config_.workers = {"dns:http://_http._tcp.engines.kv.svc"};
  ExpectRefused("picker.listen");
}

TEST_F(RouterConfigTest, OneEngineInTwoSpellingsIsOne) {
  config_.model.clear();
  for (const char* const other : {"http://engine", "http://ENGINE:80", "http://engine/"}) {
    config_.workers = {"http://engine:80", other};
    ExpectRefused("workers");
  }
  config_.workers = {"http://engine", "https://engine"};
  EXPECT_OK(schema_.RunChecks());
}

TEST_F(RouterConfigTest, EveryAddressIsOfOneSettingAndOfAKindThatItCanUse) {
  config_.http.listen = config_.process.admin_listen;
  ExpectRefused("admin.listen");
  config_.http.listen = "unix:/tmp/http.sock";
  ExpectRefused("http.listen");
  config_.http.listen = "";
  config_.process.admin_listen = "unix:/tmp/admin.sock";
  ExpectRefused("admin.listen");
}

TEST_F(RouterConfigTest, MoreMemoryThanTheMachineHasIsRefused) {
  config_.index_bytes = uint64_t{1} << 50;
  ExpectRefused("index");
}

TEST_F(RouterConfigTest, TheSumOfAllMemoryIsWithinItsLimit) {
  config_.memory_limit = 1 << 30;
  ASSERT_OK(schema_.RunChecks());
  EXPECT_LE(Sum(MemoryBounds(config_)), config_.memory_limit);
  EXPECT_LT(config_.index_bytes, RouterConfig().index_bytes);
  EXPECT_GE(config_.http.all_bodies, config_.http.max_body);
  // What somebody has set does not give way.
  config_.index_bytes = (uint64_t{1} << 30) - 1;
  ExpectRefused("memory.limit: got 1024 MiB, expected at least the http.all_bodies");
}

TEST_F(RouterConfigTest, ItTellsTheSumOfAllItems) {
  const std::string line = schema_.Tell();
  EXPECT_THAT(line, ::testing::StartsWith("memory: http.all_bodies 256 + http.all_unread 64 + "
                                          "all_answers 128 + rpc.requests 512 + "));
  const uint64_t mib = (Sum(MemoryBounds(config_)) + (1 << 20) - 1) >> 20;
  EXPECT_THAT(line, ::testing::EndsWith(fmt::format(" = {} MiB\n", mib)));
}

TEST_F(RouterConfigTest, AnswersOfEnginesAndTheirEventsAreInTheSum) {
  const uint64_t before = Sum(MemoryBounds(config_));
  config_.all_answers *= 2;
  EXPECT_EQ(Sum(MemoryBounds(config_)), before + config_.all_answers / 2);
  config_.model.clear();
  config_.workers = {"http://a:1"};
  EXPECT_OK(schema_.RunChecks());
  config_.engines.max_answer = config_.all_answers / 2 + 1;
  ExpectRefused("all_answers: got 256MiB, expected at least twice engines.max_answer");
  config_.engines.max_answer = 1 << 20;
  config_.engines.tokens = "text";
  const uint64_t without = Sum(MemoryBounds(config_));
  config_.engine_events.events = {"http://a:1=tcp://a:5557"};
  EXPECT_EQ(Sum(MemoryBounds(config_)), without + uint64_t{262'144} * 190);
}

TEST_F(RouterConfigTest, WhatIsOffTakesNoMemory) {
  const uint64_t both = Sum(MemoryBounds(config_));
  config_.http.listen = "";
  const MemoryAccount::Bounds bounds = MemoryBounds(config_);
  EXPECT_LT(Sum(bounds), both);
  EXPECT_EQ(bounds[static_cast<size_t>(MemoryItem::kBodies)], 0u);
  EXPECT_EQ(bounds[static_cast<size_t>(MemoryItem::kReading)], 0u);
  EXPECT_EQ(bounds[static_cast<size_t>(MemoryItem::kPicker)], 0u);
}

TEST_F(RouterConfigTest, SpacesInTheNameOfAModelAreNotPartOfItsId) {
  EXPECT_EQ(ModelId(config_, "Small Model 1B"), "Small-Model-1B");
  config_.model_id = "my model";
  EXPECT_EQ(ModelId(config_, "Small Model 1B"), "my model") << "as the operator says";
}

TEST_F(RouterConfigTest, WorkersMayBeListedWithSpaces) {
  ASSERT_OK(config::Load(schema_, {"--workers", "127.0.0.1:1, 127.0.0.1:2"}).status());
  EXPECT_THAT(config_.workers, ::testing::ElementsAre("127.0.0.1:1", "127.0.0.1:2"));
}

TEST_F(RouterConfigTest, EnginesNeedNoModelAndAreNotMixedWithWorkers) {
  config_.model.clear();
  config_.workers = {"http://127.0.0.1:8000", "https://engine"};
  EXPECT_TRUE(config_.relays());
  EXPECT_OK(schema_.RunChecks());
  config_.model = "model.gguf";
  EXPECT_OK(schema_.RunChecks());
  config_.workers.push_back("127.0.0.1:7500");
  const Status mixed = schema_.RunChecks();
  EXPECT_THAT(Message(mixed), HasSubstr("'http://127.0.0.1:8000' and '127.0.0.1:7500'"));
  config_.workers = {"http://127.0.0.1:8000/v1"};
  ExpectRefused("workers");
  config_.workers = {"http://a:1", "http://a:1"};
  ExpectRefused("workers");
  config_.workers = {"http://a:1"};
  config_.cache = "127.0.0.1:7400";
  ExpectRefused("cache");
  config_.cache.clear();
  config_.engines.text_block = 30;
  ExpectRefused("engines.text_block");
}

TEST_F(RouterConfigTest, BlocksOfEnginesAreOfWhatTheirKeysAreMadeOf) {
  EngineConfig& engines = config_.engines;
  engines.cache_tokens = 64'000;
  // Text: 256 bytes are 64 tokens.
  EXPECT_EQ(SentBlocks(engines, /*has_model=*/false, /*follows_events=*/false), 1000u);
  EXPECT_EQ(SentBlocks(engines, true, false), 4000u);
  EXPECT_EQ(SentBlocks(engines, false, true), 4000u);
  EXPECT_FALSE(ReaderOptions(engines, false, 1).tokenize);
  EXPECT_TRUE(ReaderOptions(engines, true, 1).tokenize);
  engines.tokens = "tokenize";
  EXPECT_TRUE(ReaderOptions(engines, false, 1).tokenize);
  EXPECT_EQ(SentBlocks(engines, false, false), 4000u);
  engines.tokens = "text";
  EXPECT_FALSE(ReaderOptions(engines, true, 1).tokenize);
  EXPECT_EQ(SentBlocks(engines, true, true), 1000u);
}

TEST_F(RouterConfigTest, OnlyEnginesOfThisRouterAreFollowedAndByTheirTokens) {
  config_.engine_events.events = {"http://a:1=tcp://a:5557"};
  ExpectRefused("engines.events");  // Before workers of Cairn.
  config_.workers = {"http://a:1", "http://b:1"};
  EXPECT_OK(schema_.RunChecks());
  config_.engine_events.events.push_back("http://c:1=tcp://c:5557");
  ExpectRefused("engines.events: got the engine 'http://c:1'");
  config_.engine_events.events.pop_back();
  EXPECT_EQ(config_.engine_events.engines(), 1u);
  // Names take the room of the most engines that they may stand for.
  config_.workers.insert(config_.workers.end(), {"dns:http://c:1", "dns:http://d:1"});
  config_.engine_events.events.insert(
      config_.engine_events.events.end(),
      {"dns:http://c:1=tcp://{host}:5557", "dns:http://d:1=tcp://{host}:5557"});
  EXPECT_OK(schema_.RunChecks());
  EXPECT_EQ(config_.engine_events.engines(), 1 + 32u);
  config_.engines.tokens = "text";
  ExpectRefused("engines.tokens");
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
  document << std::ifstream("docs/operate/config-router.md").rdbuf();
  EXPECT_THAT(document.str(), HasSubstr(schema_.PrintMarkdown()))
      << "print it with cairn-router --print-config-docs";
}

}  // namespace
}  // namespace cairn::router
