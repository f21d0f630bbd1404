#include "services/router/http/query_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/fake_router.h"

namespace cairn::router {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using Tokens = std::vector<model::TokenId>;

QueryRequest Parsed(QueryBy by, const std::string& body) {
  auto parsed = ParseQuery(by, body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << body << ": " << error->message;
    return {};
  }
  return std::get<QueryRequest>(std::move(parsed));
}

ApiError Wrong(QueryBy by, const std::string& body) {
  auto parsed = ParseQuery(by, body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
  ADD_FAILURE() << body << " is accepted";
  return {};
}

TEST(QueryApiTest, ReadsTokens) {
  const QueryRequest request = Parsed(
      QueryBy::kTokens, R"({"model":"m","token_ids":[3,1,2],"block_size":64,"tenant_id":"t",)"
                        R"("instance_id":"w:1","lora_name":null,"cache_salt":"","unknown":[1]})");
  EXPECT_EQ(request.holders.model, "m");
  EXPECT_EQ(std::get<Tokens>(request.holders.prompt), (Tokens{3, 1, 2}));
  EXPECT_EQ(request.holders.block_tokens, 64u);
  EXPECT_EQ(request.holders.holder, "w:1");
  EXPECT_EQ(request.tenant, "t");
}

TEST(QueryApiTest, ReadsKeysByBothNames) {
  const BlockKey key = Sha256::Of("key");
  for (const char* const name : {"seq_hashes", "block_hash"}) {
    const QueryRequest request = Parsed(
        QueryBy::kHashes, fmt::format(R"({{"{}":["{}"],"block_size":16}})", name, key.Hex()));
    EXPECT_EQ(std::get<std::vector<BlockKey>>(request.holders.prompt), std::vector<BlockKey>{key});
  }
}

TEST(QueryApiTest, NothingIsKnownOfPromptsWithAnAdapterOrASalt) {
  for (const char* const apart :
       {R"("lora_name":"sql")", R"("cache_salt":"s")", R"("lora_id":3)"}) {
    const QueryRequest request =
        Parsed(QueryBy::kTokens, fmt::format(R"({{"token_ids":[1],"block_size":1,{}}})", apart));
    EXPECT_TRUE(std::get<std::vector<BlockKey>>(request.holders.prompt).empty()) << apart;
  }
}

TEST(QueryApiTest, NamesWhatIsWrong) {
  const auto param = [](const std::string& body) { return Wrong(QueryBy::kTokens, body).param; };
  EXPECT_EQ(Wrong(QueryBy::kTokens, "{").code, "invalid_json");
  EXPECT_EQ(param(R"({"block_size":64})"), "token_ids");
  EXPECT_EQ(param(R"({"token_ids":"1","block_size":64})"), "token_ids");
  EXPECT_EQ(param(R"({"token_ids":[1,-1],"block_size":64})"), "token_ids[1]");
  EXPECT_EQ(param(R"({"token_ids":[2147483648],"block_size":64})"), "token_ids[0]");
  EXPECT_EQ(param(R"({"token_ids":[1]})"), "block_size");
  EXPECT_EQ(param(R"({"token_ids":[1],"block_size":0})"), "block_size");
  EXPECT_EQ(param(R"({"token_ids":[1],"block_size":1,"model":7})"), "model");
  EXPECT_EQ(param(R"({"token_ids":[1],"block_size":1,"tenant_id":"a b"})"), "tenant_id");
  EXPECT_EQ(param(R"({"token_ids":[1],"block_size":1,"lora_id":-1})"), "lora_id");
  const auto hashes = [](const std::string& list) {
    return Wrong(QueryBy::kHashes, R"({"block_size":1,"seq_hashes":)" + list + "}");
  };
  EXPECT_EQ(hashes(R"(["abc"])").param, "seq_hashes[0]");
  EXPECT_EQ(hashes("[true]").param, "seq_hashes[0]");
  EXPECT_EQ(hashes("{}").param, "seq_hashes");
  const ApiError xxh3 = hashes("[9876543210]");
  EXPECT_EQ(xxh3.code, "unsupported_hash");
  EXPECT_THAT(xxh3.message, HasSubstr("use /query with token_ids"));
}

class AnswerQueryTest : public ::testing::Test {
 protected:
  AnswerQueryTest() {
    router_.on_holders = [](const HoldersQuery&) {
      return std::vector<PromptHolder>{
          {.id = "w:1", .tokens = 192, .device_tokens = 0, .host_tokens = 64, .disk_tokens = 192}};
    };
  }
  std::variant<std::string, ApiError> Ask(const std::string& caller, const std::string& more = "") {
    return AnswerQuery(QueryBy::kTokens, R"({"token_ids":[1],"block_size":1)" + more + "}", caller,
                       &router_);
  }
  FakeRouter router_;
};

TEST_F(AnswerQueryTest, HasTheFormOfTheRfc) {
  const Json instance = {
      {"longest_matched", 192}, {"GPU", 0}, {"CPU", 64}, {"DISK", 192}, {"DP", {{"0", 192}}}};
  EXPECT_EQ(Json::parse(std::get<std::string>(Ask(""))), Json({{"default", {{"w:1", instance}}}}));
  router_.on_holders = nullptr;
  EXPECT_EQ(std::get<std::string>(Ask("")), R"({"default":{}})");
}

TEST_F(AnswerQueryTest, TheTenantIsTheCallersOrTheOneThatItNames) {
  EXPECT_TRUE(Json::parse(std::get<std::string>(Ask("", R"(,"tenant_id":"t")"))).contains("t"));
  EXPECT_TRUE(Json::parse(std::get<std::string>(Ask("chat"))).contains("chat"));
  EXPECT_TRUE(
      Json::parse(std::get<std::string>(Ask("chat", R"(,"tenant_id":"chat")"))).contains("chat"));
  const ApiError other = std::get<ApiError>(Ask("chat", R"(,"tenant_id":"batch")"));
  EXPECT_EQ(other.status, 403);
  EXPECT_EQ(other.param, "tenant_id");
}

TEST_F(AnswerQueryTest, ErrorsOfTheRouterAreTheApis) {
  router_.on_holders = [](const HoldersQuery&) {
    return GenerateError{.status = Errorf(StatusCode::kNotFound, "no such model"),
                         .field = "model"};
  };
  const ApiError error = std::get<ApiError>(Ask(""));
  EXPECT_EQ(error.status, 404);
  EXPECT_EQ(error.code, "model_not_found");
  router_.on_holders = [](const HoldersQuery&) {
    return GenerateError{.status = InvalidArgument("block_size: got 1, expected 64"),
                         .field = "block_size"};
  };
  EXPECT_EQ(std::get<ApiError>(Ask("")).code, "invalid_value");
}

}  // namespace
}  // namespace cairn::router
