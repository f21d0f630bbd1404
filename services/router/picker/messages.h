#pragma once
// Envoy's messages: what the picker reads of them, and the answers that it gives.

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/http/message.h"
#include "envoy/service/ext_proc/v3/external_processor.pb.h"
#include "services/router/http/api_error.h"
#include "services/router/picker/endpoint.h"

namespace cairn::router {

namespace ext_proc = ::envoy::service::ext_proc::v3;

// From the endpoint picker protocol of the Gateway API Inference Extension (proposal 004): the
// header and the key of metadata that name the picked endpoint.
inline constexpr char kEndpointKey[] = "x-gateway-destination-endpoint";

// Method, path, query and headers of a request. It has no body yet.
http::Request ToRequest(const ext_proc::HttpHeaders& headers);
// The value of a header, for example ":status". Names are in lower case. Empty: none.
std::string_view HeaderOf(const ext_proc::HttpHeaders& headers, std::string_view name);

// The endpoints that the gateway wants one of. nullopt: it names none, so any may be picked. If it
// names endpoints in another form than a list of texts, the list is empty: nothing may be picked.
std::optional<EndpointSubset> SubsetOf(const ext_proc::Metadata& metadata);
// The endpoint that answered, as the gateway tells with the answer's headers. Empty: it does not.
std::string ServedBy(const ext_proc::Metadata& metadata);

// The part that `message` has goes on unchanged.
ext_proc::ProcessingResponse Continue(const ext_proc::ProcessingRequest& message);
// A header and metadata that name `endpoints`, with commas between them.
void SetEndpoints(const std::string& endpoints, ext_proc::CommonResponse* response,
                  ext_proc::ProcessingResponse* message);
// Sets the length of a body that goes back in pieces. Without it a gateway that has taken the
// client's length away would send chunks, which not every engine reads.
void SetLength(uint64_t body_bytes, ext_proc::CommonResponse* response);
// The gateway answers the request with the error, in the form of OpenAI's API.
ext_proc::ProcessingResponse Immediate(const ApiError& error);
// A message for the gateway, or a piece of a body. A piece is copied when its turn to be
// written has come: until then the body is there once, however many pieces wait. Not thread-safe.
class Reply {
 public:
  Reply(ext_proc::ProcessingResponse message) : message_(std::move(message)) {}
  // Bytes [begin, begin + bytes) of `body`.
  Reply(std::shared_ptr<const std::string> body, size_t begin, size_t bytes, bool end)
      : body_(std::move(body)), begin_(begin), bytes_(bytes), end_(end) {}

  // The message to send. Once.
  ext_proc::ProcessingResponse Take();

 private:
  ext_proc::ProcessingResponse message_;
  std::shared_ptr<const std::string> body_;  // nullptr: the message is all.
  size_t begin_ = 0, bytes_ = 0;
  bool end_ = false;
};

// `body` in pieces that gateways take, after which it ends or does not. At least one piece. The
// body's share of a budget is kept until the last piece is gone.
void AppendBody(const std::shared_ptr<const std::string>& body, bool end,
                std::deque<Reply>* replies);

}  // namespace cairn::router
