#include "clients/cpp/src/grpc/channel.h"

#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "clients/cpp/src/core/node_list.h"
#include "common/net/credentials.h"
#include "common/rpc/connection_limits.h"
#include "common/rpc/trace.h"
#include "protocol/wire/convert.h"
#include "protocol/wire/message_limits.h"

namespace cairn::client {
namespace {

// gRPC would report a file that it cannot use only as a failed handshake, over and over.
Status CheckPem(std::string_view field, const std::string& path) {
  if (path.empty()) return OkStatus();
  std::ifstream in(path, std::ios::binary);
  if (!in)
    return InvalidArgument("field '{}': cannot read '{}': {}", field, path, std::strerror(errno));
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
  // gRPC lives until the process ends. Otherwise it shuts down with the last channel, and closing
  // that one waits for its poller: up to 10 s in gRPC 1.51.
  [[maybe_unused]] static const bool kept = (grpc_init(), true);
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(wire::kMaxMessageBytes);
  args.SetMaxSendMessageSize(wire::kMaxMessageBytes);
  args.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, rpc::kHttp2FrameBytes);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A proxy of the environment is for the Internet, not for a node next door.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Finds out that a machine vanished without a word. Also sets TCP_USER_TIMEOUT.
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, rpc::kKeepaliveTimeMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, rpc::kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Also the time that one attempt to connect may take: the session's own back-off is what spaces
  // attempts.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  if (!options.tls.server_name.empty()) args.SetSslTargetNameOverride(options.tls.server_name);
  return grpc::CreateCustomChannel(options.address, credentials, args);
}

std::chrono::system_clock::time_point WallDeadline(TimePoint deadline) {
  const TimePoint now = std::chrono::steady_clock::now();
  // gRPC would wait a whole millisecond for what is over by less.
  if (deadline <= now) return {};
  const auto left = deadline - now;
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(left);
}

void Prepare(grpc::ClientContext& context, TimePoint deadline, const std::string& trace) {
  if (deadline != TimePoint::max()) context.set_deadline(WallDeadline(deadline));
  if (rpc::IsTrace(trace)) context.AddMetadata(rpc::kTraceMetadata, trace);
}

}  // namespace cairn::client
