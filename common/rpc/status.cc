#include "common/rpc/status.h"

#include <string_view>

namespace cairn::rpc {
namespace {

// The words with which gRPC's client says that an attempt to connect ended, and their meaning.
constexpr struct {
  std::string_view said, meant;
} kFailedAttempts[] = {
    {"Socket closed", "the server wants TLS, or a certificate from its clients, or is not gRPC's"},
    {"Hostname Verification Check failed",
     "the server's certificate has another name than the address: use a name that it has, or say "
     "which one to expect (--tls-server-name, or a setting that ends with server_name)"},
    {"certificate verify failed",
     "the server's certificate is not from an authority that the client trusts"},
    {"wrong version number", "the server has no TLS at this port"},
    {"Trying to connect an http1.x server",
     "this is an HTTP port, such as that of probes; expected the one of gRPC"},
};

}  // namespace

// Messages travel in an HTTP/2 header, which has a limit of some KiB.
constexpr size_t kMaxMessage = 2048;

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      Message(status).substr(0, kMaxMessage));
}

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  std::string text = status.error_message();
  if (text.starts_with("failed to connect")) {
    for (const auto& [said, meant] : kFailedAttempts) {
      if (text.find(said) != std::string::npos) text += fmt::format(": {}", meant);
    }
  }
  return Status(absl::StatusCode(static_cast<int>(status.error_code())), text);
}

}  // namespace cairn::rpc
