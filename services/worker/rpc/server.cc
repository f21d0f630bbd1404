#include "services/worker/rpc/server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <utility>

#include "common/net/credentials.h"
#include "services/worker/rpc/worker_service.h"

namespace cairn::worker {
namespace {

// Beside those of requests: GetInfo, WaitIdle, requests that are refused, gRPC's own pollers.
constexpr uint32_t kSpareThreads = 16;
constexpr int kMaxMessageBytes = 16 << 20;

}  // namespace

struct Server::Impl {
  Impl(WorkerEngine& engine, const WorkerMetrics& metrics) : service(engine, metrics) {}
  WorkerService service;
  std::unique_ptr<grpc::Server> server;
  std::string address;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { Shutdown(std::chrono::milliseconds(0)); }

const std::string& Server::address() const { return impl_->address; }

Result<std::unique_ptr<Server>> Server::Start(const Options& options, WorkerEngine& engine,
                                              const WorkerMetrics& metrics) {
  CAIRN_RETURN_IF_ERROR(net::Check(options.tls));
  CAIRN_ASSIGN_OR_RETURN(const net::ListenAddress listen,
                         net::ParseListenAddress(options.listen, "listen"));
  CAIRN_RETURN_IF_ERROR(net::CheckBind(listen, options.tls, "listen"));
  auto impl = std::make_unique<Impl>(engine, metrics);
  grpc::ResourceQuota quota("cairn-worker");
  quota.SetMaxThreads(static_cast<int>(options.max_requests + kSpareThreads));
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.listen, net::MakeServerCredentials(options.tls), &port);
  builder.RegisterService(&impl->service);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // Two processes on one port would each get a part of the requests.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || (!listen.is_unix && port == 0)) {
    return Errorf(StatusCode::kUnavailable, "listen: cannot bind '{}': is the port taken?",
                  options.listen);
  }
  impl->address = listen.is_unix ? options.listen : listen.WithPort(port);
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

void Server::Shutdown(std::chrono::milliseconds grace) {
  if (impl_->server == nullptr) return;
  impl_->server->Shutdown(std::chrono::system_clock::now() + grace);
  impl_->server->Wait();
  impl_->server.reset();
}

}  // namespace cairn::worker
