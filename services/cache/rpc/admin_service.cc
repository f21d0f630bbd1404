#include "services/cache/rpc/admin_service.h"

#include "cairn/v1/admin.grpc.pb.h"
#include "clients/cpp/wire/convert.h"
#include "services/common/log/log.h"
#include "services/common/net/credentials.h"

namespace cairn::cache {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

class AdminService final : public v1::Admin::CallbackService {
 public:
  explicit AdminService(RpcContext* rpc) : rpc_(rpc) {}

  ServerUnaryReactor* ListNamespaces(CallbackServerContext* context, const v1::ListNamespacesRequest* request,
                                     v1::ListNamespacesResponse* response) override {
    return Guarded(Method::kListNamespaces, context, request, response, [=, this]() -> Status {
      if (!request->tenant().empty()) CAIRN_RETURN_IF_ERROR(CheckTenant(request->tenant()));
      for (const NamespaceInfo& info : rpc_->engine->ListNamespaces(request->tenant())) {
        v1::NamespaceInfo* to = response->add_namespaces();
        wire::ToProto(info.spec, to->mutable_spec());
        to->set_fingerprint(std::string(info.fingerprint.View()));
        to->set_blocks(info.blocks);
        to->set_bytes(info.bytes);
        to->set_generation(info.generation);
      }
      return OkStatus();
    });
  }

  ServerUnaryReactor* DropNamespace(CallbackServerContext* context, const v1::DropNamespaceRequest* request,
                                    v1::DropResponse* response) override {
    return Guarded(Method::kDropNamespace, context, request, response, [=, this]() -> Status {
      CAIRN_ASSIGN_OR_RETURN(const Digest fingerprint, Digest::FromBytes(request->fingerprint(), "fingerprint"));
      return Report("namespace_dropped", fingerprint.Hex(), rpc_->engine->DropNamespace(fingerprint), response);
    });
  }

  ServerUnaryReactor* DropTenant(CallbackServerContext* context, const v1::DropTenantRequest* request,
                                 v1::DropResponse* response) override {
    return Guarded(Method::kDropTenant, context, request, response, [=, this]() -> Status {
      CAIRN_RETURN_IF_ERROR(CheckTenant(request->tenant()));
      return Report("tenant_dropped", request->tenant(), rpc_->engine->DropTenant(request->tenant()), response);
    });
  }

  ServerUnaryReactor* BumpEpoch(CallbackServerContext* context, const v1::BumpEpochRequest* request,
                                v1::DropResponse* response) override {
    return Guarded(Method::kBumpEpoch, context, request, response, [=, this]() -> Status {
      CAIRN_ASSIGN_OR_RETURN(const Digest fingerprint, Digest::FromBytes(request->fingerprint(), "fingerprint"));
      return Report("epoch_bumped", fingerprint.Hex(), rpc_->engine->BumpEpoch(fingerprint), response);
    });
  }

 private:
  // On the executor: a drop is written to disk before it answers.
  template <typename Request, typename Response, typename Handler>
  ServerUnaryReactor* Guarded(Method method, CallbackServerContext* context, const Request* request,
                              Response* response, Handler handler) {
    const net::Caller caller = net::CallerOf(*context);
    const Status allowed = net::CheckAdmin(caller, rpc_->options.tls, rpc_->options.admin_identities);
    if (!allowed.ok()) {
      rpc_->metrics->Rejected(Rejection::kAuth);
      log::Warn("admin_refused", {{"method", std::string(Name(method))},
                                  {"peer", context->peer()},
                                  {"identity", caller.identities.empty() ? "" : caller.identities.front()}});
    }
    return Unary(rpc_, method, context, request, response, Where::kExecutor,
                 [allowed, handler = std::move(handler)](Call&) { return allowed.ok() ? handler() : allowed; });
  }

  static Status Report(const char* event, const std::string& what, const Result<DropResult>& result,
                       v1::DropResponse* response) {
    CAIRN_RETURN_IF_ERROR(result.status());
    response->set_namespaces(result->namespaces);
    response->set_hidden_blocks(result->hidden_blocks);
    log::Info(event, {{"what", what}, {"hidden_blocks", log::Num(result->hidden_blocks)}});
    return OkStatus();
  }

  RpcContext* const rpc_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(RpcContext* rpc) { return std::make_unique<AdminService>(rpc); }

}  // namespace cairn::cache
