#include <grpcpp/grpcpp.h>

#include "cairn/v1/router.grpc.pb.h"
#include "clients/cpp/src/grpc/channel.h"
#include "common/rpc/status.h"
#include "tools/cairn/generator/connection.h"
#include "tools/cairn/generator/router_info.h"

namespace cairn::cli {
namespace {

class RemoteRouter final : public RouterInfoSource {
 public:
  explicit RemoteRouter(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::Router::NewStub(channel)) {}

  Result<RouterView> Ask(Duration timeout) override {
    grpc::ClientContext context;
    client::Prepare(context, SteadyClock::Get().Now() + timeout, "");
    v1::RouterInfo info;
    CAIRN_RETURN_IF_ERROR(rpc::FromGrpc(stub_->GetInfo(&context, v1::RouterInfoRequest(), &info)));
    RouterView view{.model = info.model(),
                    .policy = info.policy(),
                    .waiting = info.waiting(),
                    .workers = static_cast<uint64_t>(info.workers_size()),
                    .arrivals_per_second = info.arrivals_per_second(),
                    .use = info.use(),
                    .requests_active = info.requests_active(),
                    .requests_completed = info.requests_completed(),
                    .requests_shed = info.requests_shed(),
                    .prompt_tokens = info.prompt_tokens(),
                    .cached_tokens = info.cached_tokens(),
                    .index_entries = info.index_entries(),
                    .index_bytes = info.index_bytes(),
                    .index_members = info.index_members()};
    for (const v1::RouterWorker& worker : info.workers()) {
      view.ready_workers += worker.condition() == "ready";
    }
    return view;
  }

 private:
  const std::unique_ptr<v1::Router::Stub> stub_;
};

}  // namespace

Result<std::unique_ptr<RouterInfoSource>> ConnectRouterInfo(const std::string& address,
                                                            const TlsFlags& tls) {
  CAIRN_ASSIGN_OR_RETURN(const auto channel, client::NewChannel(ConnectionTo(address, tls)));
  return std::make_unique<RemoteRouter>(channel);
}

}  // namespace cairn::cli
