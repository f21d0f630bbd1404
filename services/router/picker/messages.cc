#include "services/router/picker/messages.h"

#include <algorithm>
#include <set>
#include <utility>

namespace cairn::router {
namespace {

using ext_proc::ProcessingRequest;
using ext_proc::ProcessingResponse;

// The namespace of the protocol.
constexpr char kNamespace[] = "envoy.lb";
constexpr char kSubsetNamespace[] = "envoy.lb.subset_hint";
constexpr char kSubsetKey[] = "x-gateway-destination-endpoint-subset";
constexpr char kServedKey[] = "x-gateway-destination-endpoint-served";
// Envoy recommends 64 KiB at most.
constexpr size_t kPieceBytes = 62 << 10;

std::string_view ValueOf(const ext_proc::HeaderValue& header) {
  return header.raw_value().empty() ? header.value() : header.raw_value();
}

void SetHeader(const std::string& name, const std::string& value,
               ext_proc::HeaderMutation* mutation) {
  ext_proc::HeaderValueOption* const option = mutation->add_set_headers();
  option->mutable_header()->set_key(name);
  option->mutable_header()->set_raw_value(value);
  // A client must not name an endpoint.
  option->set_append_action(ext_proc::HeaderValueOption::OVERWRITE_IF_EXISTS_OR_ADD);
}

const google::protobuf::Value* Find(const ext_proc::Metadata& metadata, const char* name,
                                    const char* key) {
  const auto space = metadata.filter_metadata().find(name);
  if (space == metadata.filter_metadata().end()) return nullptr;
  const auto value = space->second.fields().find(key);
  return value == space->second.fields().end() ? nullptr : &value->second;
}

// "a,b , c".
void AddEndpoints(std::string_view text, std::set<std::string>* endpoints) {
  while (!text.empty()) {
    std::string_view one = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    one.remove_prefix(std::min(one.size(), one.find_first_not_of(' ')));
    one = one.substr(0, one.find_last_not_of(' ') + 1);
    if (!one.empty()) endpoints->insert(std::string(one));
  }
}

}  // namespace

std::string_view HeaderOf(const ext_proc::HttpHeaders& headers, std::string_view name) {
  for (const ext_proc::HeaderValue& header : headers.headers().headers()) {
    if (header.key() == name) return ValueOf(header);
  }
  return {};
}

http::Request ToRequest(const ext_proc::HttpHeaders& headers) {
  http::Request request;
  request.method = HeaderOf(headers, ":method");
  const std::string_view path = HeaderOf(headers, ":path");
  const size_t query = path.find('?');
  request.path = path.substr(0, query);
  if (query != std::string_view::npos) request.query = path.substr(query + 1);
  for (const ext_proc::HeaderValue& header : headers.headers().headers()) {
    if (header.key().starts_with(':')) continue;
    request.headers.push_back({header.key(), std::string(ValueOf(header))});
  }
  return request;
}

std::optional<EndpointSubset> SubsetOf(const ext_proc::Metadata& metadata) {
  const google::protobuf::Value* const value = Find(metadata, kSubsetNamespace, kSubsetKey);
  if (value == nullptr) return std::nullopt;
  std::set<std::string> endpoints;
  // A list by the protocol; one text is what some gateways make of it.
  AddEndpoints(value->string_value(), &endpoints);
  for (const google::protobuf::Value& one : value->list_value().values()) {
    AddEndpoints(one.string_value(), &endpoints);
  }
  return EndpointSubset(std::move(endpoints));
}

std::string ServedBy(const ext_proc::Metadata& metadata) {
  const google::protobuf::Value* const value = Find(metadata, kNamespace, kServedKey);
  return value == nullptr ? "" : value->string_value();
}

ProcessingResponse Continue(const ProcessingRequest& message) {
  ProcessingResponse reply;
  switch (message.request_case()) {
    case ProcessingRequest::kRequestHeaders:
      reply.mutable_request_headers();
      break;
    case ProcessingRequest::kRequestBody:
      reply.mutable_request_body();
      break;
    case ProcessingRequest::kRequestTrailers:
      reply.mutable_request_trailers();
      break;
    case ProcessingRequest::kResponseHeaders:
      reply.mutable_response_headers();
      break;
    case ProcessingRequest::kResponseBody:
      reply.mutable_response_body();
      break;
    case ProcessingRequest::kResponseTrailers:
      reply.mutable_response_trailers();
      break;
    case ProcessingRequest::REQUEST_NOT_SET:
      break;
  }
  return reply;
}

void SetEndpoints(const std::string& endpoints, ext_proc::CommonResponse* response,
                  ProcessingResponse* message) {
  if (response != nullptr) {
    SetHeader(kEndpointKey, endpoints, response->mutable_header_mutation());
  }
  // g++ 12 warns about the map's own strings where a key is an array.
  auto& space = (*message->mutable_dynamic_metadata()->mutable_fields())[std::string(kNamespace)];
  (*space.mutable_struct_value()->mutable_fields())[std::string(kEndpointKey)].set_string_value(
      endpoints);
}

void SetLength(uint64_t body_bytes, ext_proc::CommonResponse* response) {
  SetHeader("content-length", std::to_string(body_bytes), response->mutable_header_mutation());
}

ProcessingResponse Immediate(const ApiError& error) {
  const http::Response answer = ErrorResponse(error);
  ProcessingResponse reply;
  ext_proc::ImmediateResponse& immediate = *reply.mutable_immediate_response();
  immediate.mutable_status()->set_code(answer.status);
  SetHeader("content-type", answer.content_type, immediate.mutable_headers());
  for (const http::Header& header : answer.headers) {
    std::string name = header.name;
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    SetHeader(name, header.value, immediate.mutable_headers());
  }
  immediate.set_body(answer.body);
  immediate.set_details("cairn_router_picker");
  return reply;
}

ProcessingResponse Reply::Take() {
  if (body_ == nullptr) return std::move(message_);
  ext_proc::StreamedBodyResponse& streamed = *message_.mutable_request_body()
                                                  ->mutable_response()
                                                  ->mutable_body_mutation()
                                                  ->mutable_streamed_response();
  streamed.set_body(body_->data() + begin_, bytes_);
  streamed.set_end_of_stream(end_);
  body_.reset();
  return std::move(message_);
}

void AppendBody(const std::shared_ptr<const std::string>& body, bool end,
                std::deque<Reply>* replies) {
  size_t at = 0;
  do {
    const size_t bytes = std::min(kPieceBytes, body->size() - at);
    replies->emplace_back(body, at, bytes, end && at + bytes == body->size());
    at += bytes;
  } while (at < body->size());
}

}  // namespace cairn::router
