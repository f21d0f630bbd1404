#include "services/router/picker/messages.h"

#include <gtest/gtest.h>

namespace cairn::router {
namespace {

TEST(EndpointTest, IsWhatIsBetweenSchemeAndPath) {
  EXPECT_EQ(EndpointOf("http://10.0.0.1:8000"), "10.0.0.1:8000");
  EXPECT_EQ(EndpointOf("https://[fd00::1]:443/"), "[fd00::1]:443");
  EXPECT_EQ(EndpointOf("10.0.0.1:8000"), "10.0.0.1:8000");
  EXPECT_EQ(EndpointOf(""), "");
}

TEST(EndpointTest, ANameIsNone) {
  EXPECT_TRUE(CheckEndpoint("http://10.0.0.1:8000").ok());
  EXPECT_TRUE(CheckEndpoint("[::1]:80").ok());
  for (const char* const bad : {"http://vllm:8000", "http://10.0.0.1", "unix:/socket", ""}) {
    const Status status = CheckEndpoint(bad);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(Message(status).find(bad), std::string::npos);
  }
}

ext_proc::HttpHeaders Headers(const std::vector<http::Header>& headers, bool raw = true) {
  ext_proc::HttpHeaders all;
  for (const http::Header& header : headers) {
    ext_proc::HeaderValue& one = *all.mutable_headers()->add_headers();
    one.set_key(header.name);
    raw ? one.set_raw_value(header.value) : one.set_value(header.value);
  }
  return all;
}

TEST(PickerMessagesTest, ARequestHasMethodPathAndHeaders) {
  for (const bool raw : {true, false}) {
    const http::Request request = ToRequest(Headers({{":method", "POST"},
                                                     {":path", "/v1/completions?a=b"},
                                                     {":authority", "host"},
                                                     {"content-type", "application/json"}},
                                                    raw));
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/completions");
    EXPECT_EQ(request.query, "a=b");
    ASSERT_EQ(request.headers.size(), 1u);
    EXPECT_EQ(*request.Find("Content-Type"), "application/json");
  }
}

google::protobuf::Value& Key(ext_proc::Metadata& metadata, const char* name, const char* key) {
  return (*(*metadata.mutable_filter_metadata())[name].mutable_fields())[key];
}

TEST(PickerMessagesTest, ASubsetIsAListOfEndpoints) {
  ext_proc::Metadata metadata;
  EXPECT_FALSE(SubsetOf(metadata));
  auto& value = Key(metadata, "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset");
  value.mutable_list_value()->add_values()->set_string_value("10.0.0.1:80");
  value.mutable_list_value()->add_values()->set_number_value(3);
  ASSERT_TRUE(SubsetOf(metadata));
  EXPECT_TRUE(SubsetOf(metadata)->Has("http://10.0.0.1:80"));
  EXPECT_FALSE(SubsetOf(metadata)->Has("http://10.0.0.2:80"));
  value.set_string_value("10.0.0.2:80, 10.0.0.3:80 ,");
  EXPECT_TRUE(SubsetOf(metadata)->Has("10.0.0.2:80"));
  EXPECT_TRUE(SubsetOf(metadata)->Has("10.0.0.3:80"));
  EXPECT_FALSE(SubsetOf(metadata)->Has(""));
  // Nothing may be picked from what is no list.
  value.set_bool_value(true);
  ASSERT_TRUE(SubsetOf(metadata));
  EXPECT_TRUE(SubsetOf(metadata)->empty());
}

TEST(PickerMessagesTest, EndpointsAreTheSameInHeaderAndMetadata) {
  ext_proc::ProcessingResponse reply;
  SetEndpoints("1.2.3.4:5,1.2.3.4:6", reply.mutable_request_body()->mutable_response(), &reply);
  const auto& header = reply.request_body().response().header_mutation().set_headers(0);
  EXPECT_EQ(header.header().key(), "x-gateway-destination-endpoint");
  EXPECT_EQ(header.header().raw_value(), "1.2.3.4:5,1.2.3.4:6");
  // A header that a client sent in its place goes.
  EXPECT_EQ(header.append_action(), ext_proc::HeaderValueOption::OVERWRITE_IF_EXISTS_OR_ADD);
  EXPECT_EQ(reply.dynamic_metadata()
                .fields()
                .at("envoy.lb")
                .struct_value()
                .fields()
                .at("x-gateway-destination-endpoint")
                .string_value(),
            "1.2.3.4:5,1.2.3.4:6");
}

TEST(PickerMessagesTest, AnErrorIsTheApis) {
  const auto reply = Immediate(
      {.status = 429, .message = "busy", .code = "c", .retry_after = std::chrono::seconds(3)});
  const ext_proc::ImmediateResponse& immediate = reply.immediate_response();
  EXPECT_EQ(immediate.status().code(), 429);
  EXPECT_EQ(immediate.body(),
            "{\"error\":{\"code\":\"c\",\"message\":\"busy\",\"param\":null,"
            "\"type\":\"rate_limit_error\"}}\n");
  ASSERT_EQ(immediate.headers().set_headers_size(), 2);
  EXPECT_EQ(immediate.headers().set_headers(0).header().raw_value(), "application/json");
  EXPECT_EQ(immediate.headers().set_headers(1).header().key(), "retry-after");
  EXPECT_EQ(immediate.headers().set_headers(1).header().raw_value(), "3");
}

TEST(PickerMessagesTest, ABodyGoesBackInPieces) {
  const auto pieces = [](const std::string& body, bool end) {
    std::deque<Reply> replies;
    AppendBody(std::make_shared<const std::string>(body), end, &replies);
    std::vector<ext_proc::ProcessingResponse> messages;
    for (Reply& reply : replies) messages.push_back(reply.Take());
    std::string all;
    for (size_t i = 0; i < messages.size(); ++i) {
      const auto& piece = messages[i].request_body().response().body_mutation().streamed_response();
      EXPECT_LE(piece.body().size(), 64u << 10);
      EXPECT_EQ(piece.end_of_stream(), end && i + 1 == messages.size());
      all += piece.body();
    }
    EXPECT_EQ(all, body);
    return messages.size();
  };
  EXPECT_EQ(pieces("", true), 1u);
  EXPECT_EQ(pieces("abc", false), 1u);
  EXPECT_EQ(pieces(std::string(200'000, 'x'), true), 4u);
}

}  // namespace
}  // namespace cairn::router
