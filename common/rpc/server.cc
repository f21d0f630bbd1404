#include "common/rpc/server.h"

#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <climits>
#include <vector>

#include "common/net/address.h"
#include "common/net/credentials.h"
#include "common/net/unix_path.h"
#include "common/rpc/channel.h"
#include "common/rpc/clock_step.h"
#include "common/rpc/connection_limits.h"

namespace cairn::rpc {
namespace {

// Connections that may receive as much as they can at once, and stay within the memory. Beyond its
// memory gRPC breaks calls off (RST_STREAM, ENHANCE_YOUR_CALM) instead of letting them wait.
constexpr size_t kReceiversAtOnce = 64;
constexpr size_t kLeastRead = 16 << 10, kMostRead = 4 << 20;
// With less, gRPC must not let a connection send more than the message that is being read because
// the network is fast.
constexpr size_t kAmpleMemory = 128 << 20;

int Milliseconds(Duration duration) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return static_cast<int>(std::min<int64_t>(ms, INT_MAX));
}

void SetConnections(const Server::Options& options, grpc::ServerBuilder* builder) {
  // Else a second process on the same port would silently get a part of the calls.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kHttp2FrameBytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kMinPingIntervalMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  if (options.keepalive.count() > 0) {
    builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive));
    builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  }
  if (options.memory_bytes > 0) {
    const size_t read = std::clamp(options.memory_bytes / kReceiversAtOnce, kLeastRead, kMostRead);
    builder->AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, static_cast<int>(read));
    if (options.memory_bytes < kAmpleMemory) {
      builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    }
  }
  if (options.max_connection_age.count() > 0) {
    // The grace is endless by default: streams go on over the old connection.
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                                Milliseconds(options.max_connection_age));
  }
}

// gRPC does not say it.
Status WhyNotBound(const std::vector<net::NamedAddress>& addresses) {
  for (const auto& [setting, address] : addresses) {
    const std::string error = net::BindError(address);
    if (error.empty()) continue;
    return Errorf(StatusCode::kUnavailable, "{}: cannot bind '{}': {}", setting,
                  address.WithPort(address.port), error);
  }
  return Errorf(StatusCode::kUnavailable, "listen: cannot start a gRPC server at '{}'",
                addresses.front().address.WithPort(addresses.front().address.port));
}

}  // namespace

Server::~Server() { Shutdown(Duration(0)); }

Status Server::Start(const Options& options) {
  CAIRN_RETURN_IF_ERROR(Listen(options));
  Serve();
  return OkStatus();
}

Status Server::Listen(const Options& options) {
  CAIRN_RETURN_IF_ERROR(net::Check(options.tls));
  CAIRN_ASSIGN_OR_RETURN(const net::ListenAddress listen,
                         net::ParseListenAddress(options.listen, "listen"));
  CAIRN_RETURN_IF_ERROR(net::CheckBind(listen, options.tls, "listen"));
  // gRPC would take the paths from whoever listens there.
  if (listen.is_unix) {
    CAIRN_RETURN_IF_ERROR(Annotate(net::FreeUnixPath(listen.host), "listen"));
  }
  std::vector<net::NamedAddress> all = {{"listen", listen}};
  if (!options.listen_unix.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const net::ListenAddress local,
                           net::ParseListenAddress(options.listen_unix, "listen_unix"));
    CAIRN_RETURN_IF_ERROR(Annotate(net::FreeUnixPath(local.host), "listen_unix"));
    all.push_back({"listen_unix", local});
  }
  grpc::ServerBuilder builder;
  builder.AddListeningPort(listen.is_unix ? options.listen : listen.WithPort(listen.port),
                           net::MakeServerCredentials(options.tls), &port_);
  if (!options.listen_unix.empty()) {
    builder.AddListeningPort(options.listen_unix, net::MakeServerCredentials({}));
  }
  calls_.Register(&builder);
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  if (options.memory_bytes > 0) {
    grpc::ResourceQuota quota("cairn");
    builder.SetResourceQuota(quota.Resize(options.memory_bytes));
  }
  SetConnections(options, &builder);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return WhyNotBound(all);
  FollowClockSteps();
  if (listen.is_unix) port_ = 0;
  address_ = listen.is_unix ? options.listen : listen.WithPort(port_);
  return OkStatus();
}

void Server::Serve() { calls_.Start(); }

Status Server::ListenForOperators(const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(operators_, OperatorSocket::Listen(path, server_.get()));
  return OkStatus();
}

void Server::Shutdown(Duration grace) {
  if (server_ == nullptr) return;
  const gpr_timespec until = CallDeadline(SteadyClock::Get().Now() + grace);
  operators_.reset();
  server_->Shutdown(until);
  server_->Wait();
  calls_.Stop();
  server_.reset();
}

}  // namespace cairn::rpc
