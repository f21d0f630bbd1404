#include "clients/cpp/src/grpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "clients/cpp/src/core/node_list.h"
#include "common/net/credentials.h"
#include "common/rpc/trace.h"
#include "protocol/wire/convert.h"
#include "protocol/wire/message_limits.h"

namespace cairn::client {
namespace {

// gRPC would report a file that it cannot use only as a failed handshake, over and over.
Status CheckPem(std::string_view field, const std::string& path) {
  if (path.empty()) return OkStatus();
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return InvalidArgument("field '{}': cannot read '{}': {}", field, path, std::strerror(errno));
  }
  std::stringstream text;
  text << in.rdbuf();
  if (text.str().find("-----BEGIN") == std::string::npos) {
    return InvalidArgument("field '{}': '{}' is not a PEM file", field, path);
  }
  return OkStatus();
}

Result<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const TlsOptions& tls) {
  if (!tls.enabled && tls.ca_file.empty() && tls.cert_file.empty() && tls.key_file.empty()) {
    return grpc::InsecureChannelCredentials();
  }
  if (tls.cert_file.empty() != tls.key_file.empty()) {
    return InvalidArgument(
        "field 'tls.{}': got nothing, expected a file, because the other of cert_file and key_file "
        "is given",
        tls.cert_file.empty() ? "cert_file" : "key_file");
  }
  CAIRN_RETURN_IF_ERROR(CheckPem("tls.ca_file", tls.ca_file));
  CAIRN_RETURN_IF_ERROR(CheckPem("tls.cert_file", tls.cert_file));
  CAIRN_RETURN_IF_ERROR(CheckPem("tls.key_file", tls.key_file));
  return net::MakeChannelCredentials({.authorities = tls.ca_file,
                                      .certificate = tls.cert_file,
                                      .private_key = tls.key_file,
                                      .reload_interval = tls.reload_interval});
}

}  // namespace

Result<std::shared_ptr<grpc::Channel>> NewChannel(const ConnectOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckAddress(options.address));
  CAIRN_ASSIGN_OR_RETURN(const auto credentials, Credentials(options.tls));
  grpc::ChannelArguments args = rpc::ChannelArguments(wire::kMaxMessageBytes);
  if (!options.tls.server_name.empty()) args.SetSslTargetNameOverride(options.tls.server_name);
  return grpc::CreateCustomChannel(options.address, credentials, args);
}

void Prepare(grpc::ClientContext& context, TimePoint deadline, const std::string& trace) {
  if (deadline != TimePoint::max()) context.set_deadline(CallDeadline(deadline));
  if (rpc::IsTrace(trace)) context.AddMetadata(rpc::kTraceMetadata, trace);
}

}  // namespace cairn::client
