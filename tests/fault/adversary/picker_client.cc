#include "tests/fault/adversary/picker_client.h"

namespace cairn::fault {
namespace {

void AddHeader(const std::string& name, const std::string& value, ext_proc::HttpHeaders* to) {
  ext_proc::HeaderValue& header = *to->mutable_headers()->add_headers();
  header.set_key(name);
  header.set_raw_value(value);
}

std::string EndpointOf(const ext_proc::CommonResponse& response) {
  for (const auto& change : response.header_mutation().set_headers()) {
    if (change.header().key() == "x-gateway-destination-endpoint") {
      return change.header().raw_value();
    }
  }
  return "";
}

}  // namespace

ext_proc::ProcessingRequest PickHead(
    const std::string& path, const std::vector<std::pair<std::string, std::string>>& headers) {
  ext_proc::ProcessingRequest message;
  ext_proc::HttpHeaders& head = *message.mutable_request_headers();
  AddHeader(":method", "POST", &head);
  AddHeader(":path", path, &head);
  AddHeader("content-type", "application/json", &head);
  for (const auto& [name, value] : headers) AddHeader(name, value, &head);
  return message;
}

ext_proc::ProcessingRequest PickBody(const std::string& body, bool end) {
  ext_proc::ProcessingRequest message;
  message.mutable_request_body()->set_body(body);
  message.mutable_request_body()->set_end_of_stream(end);
  return message;
}

std::string EndpointIn(const ext_proc::ProcessingResponse& reply) {
  const std::string endpoint = EndpointOf(reply.request_headers().response());
  return endpoint.empty() ? EndpointOf(reply.request_body().response()) : endpoint;
}

}  // namespace cairn::fault
