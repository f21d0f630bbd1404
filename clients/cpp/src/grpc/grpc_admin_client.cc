#include "clients/cpp/src/grpc/grpc_admin_client.h"

#include <utility>

#include "cairn/client/connect.h"
#include "cairn/v1/admin.grpc.pb.h"
#include "clients/cpp/src/grpc/unary_call.h"
#include "protocol/wire/convert.h"

namespace cairn::client {
namespace {

class GrpcAdminClient final : public AdminClient {
 public:
  // `clock` must outlive it.
  GrpcAdminClient(std::shared_ptr<grpc::Channel> channel, const Clock* clock)
      : stub_(v1::Admin::NewStub(std::move(channel))), clock_(clock) {}

  Result<std::vector<NamespaceInfo>> ListNamespaces(std::string_view tenant,
                                                    const CallOptions& options) override {
    v1::ListNamespacesRequest request;
    request.set_tenant(std::string(tenant));
    CAIRN_ASSIGN_OR_RETURN(const auto response,
                           Call(&v1::Admin::Stub::ListNamespaces, request, options));
    std::vector<NamespaceInfo> out;
    for (const v1::NamespaceInfo& in : response.namespaces()) {
      NamespaceInfo info;
      // One that this version cannot read hides no other.
      auto spec = wire::FromProto(in.spec());
      info.spec = spec.ok() ? *std::move(spec) : wire::WithoutLayout(in.spec());
      CAIRN_ASSIGN_OR_RETURN(info.fingerprint, Digest::FromBytes(in.fingerprint(), "fingerprint"));
      info.blocks = in.blocks();
      info.bytes = in.bytes();
      info.generation = in.generation();
      info.host_blocks = in.host_blocks();
      info.evicted_host_blocks = in.evicted_host_blocks();
      info.evicted_host_bytes = in.evicted_host_bytes();
      info.tenant_host_bytes = in.tenant_host_bytes();
      for (const v1::TierRoom& room : in.tenant_room()) {
        const auto tier = wire::TierFromProto(room.tier());
        if (!tier) continue;  // One that this version does not know.
        info.tenant_room.push_back(
            {.tier = *tier,
             .bytes = room.bytes(),
             .most = room.has_most() ? std::optional(room.most()) : std::nullopt,
             .guaranteed = room.guaranteed()});
      }
      info.remembered_blocks = in.remembered_blocks();
      info.block_life =
          std::chrono::milliseconds(std::min<uint64_t>(in.block_life_ms(), uint64_t{1} << 40));
      for (const v1::LearnedGroup& group : in.learned()) {
        info.learned.push_back({.name = group.name(),
                                .uses = group.uses(),
                                .block_seconds = group.block_seconds(),
                                .blocks = group.blocks()});
      }
      for (const v1::PoolBlocks& pool : in.pools()) {
        info.pools.push_back({.blocks = pool.blocks(), .bytes = pool.bytes()});
      }
      out.push_back(std::move(info));
    }
    return out;
  }

  Result<DropResult> DropNamespace(const Digest& fingerprint, const CallOptions& options) override {
    v1::DropNamespaceRequest request;
    request.set_fingerprint(std::string(fingerprint.View()));
    return Dropped(Call(&v1::Admin::Stub::DropNamespace, request, options));
  }

  Result<DropResult> DropTenant(std::string_view tenant, const CallOptions& options) override {
    v1::DropTenantRequest request;
    request.set_tenant(std::string(tenant));
    return Dropped(Call(&v1::Admin::Stub::DropTenant, request, options));
  }

  Result<DropResult> BumpEpoch(const Digest& fingerprint, const CallOptions& options) override {
    v1::BumpEpochRequest request;
    request.set_fingerprint(std::string(fingerprint.View()));
    return Dropped(Call(&v1::Admin::Stub::BumpEpoch, request, options));
  }

  Result<bool> Drain(const CallOptions& options) override {
    CAIRN_ASSIGN_OR_RETURN(const auto response,
                           Call(&v1::Admin::Stub::Drain, v1::DrainRequest(), options));
    return !response.already();
  }

 private:
  template <typename Request, typename Response>
  using Method = grpc::Status (v1::Admin::Stub::*)(grpc::ClientContext*, const Request&, Response*);

  template <typename Request, typename Response>
  Result<Response> Call(Method<Request, Response> method, const Request& request,
                        const CallOptions& options) {
    return CallUnary(stub_.get(), method, request, *clock_, options);
  }

  static Result<DropResult> Dropped(const Result<v1::DropResponse>& response) {
    CAIRN_RETURN_IF_ERROR(response.status());
    return DropResult{.namespaces = response->namespaces(),
                      .hidden_blocks = response->hidden_blocks()};
  }

  const std::unique_ptr<v1::Admin::Stub> stub_;
  const Clock* const clock_;
};

}  // namespace

std::unique_ptr<AdminClient> NewGrpcAdminClient(std::shared_ptr<grpc::Channel> channel,
                                                const Clock* clock) {
  return std::make_unique<GrpcAdminClient>(std::move(channel), clock);
}

}  // namespace cairn::client
