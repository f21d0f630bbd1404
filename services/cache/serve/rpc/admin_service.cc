#include "services/cache/serve/rpc/admin_service.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "cairn/v1/admin.grpc.pb.h"
#include "common/log/log.h"
#include "common/net/credentials.h"
#include "common/rpc/operator_socket.h"
#include "common/rpc/unary_call.h"
#include "common/tenants/tenant_name.h"
#include "protocol/wire/convert.h"
#include "services/cache/serve/rpc/request_fields.h"

namespace cairn::cache {
namespace {

constexpr size_t kMostAudited = 256;  // Characters of a request in the log.

// Whether a call changes something. A call that only looks may be made all the time.
enum class Effect { kLooks, kChanges };

// Fingerprints as everywhere else: in hexadecimal digits.
class HexOfBytes final : public google::protobuf::TextFormat::FastFieldValuePrinter {
 public:
  void PrintBytes(const std::string& bytes,
                  google::protobuf::TextFormat::BaseTextGenerator* to) const override {
    to->PrintString(absl::BytesToHexString(bytes));
  }
};

std::string TextOf(const google::protobuf::Message& request) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  printer.SetDefaultFieldValuePrinter(new HexOfBytes());
  std::string text;
  printer.PrintToString(request, &text);
  if (text.ends_with(' ')) text.pop_back();
  return text.substr(0, kMostAudited);
}

// The name in the caller's certificate, or the process that the kernel named.
std::string IdentityOf(const rpc::Call& call, const net::Caller& caller) {
  const auto who = rpc::OperatorOf(call.grpc().peer());
  if (who) return who->Describe();
  return call.caller() != nullptr ? call.caller()->identity.Describe() : caller.Describe();
}

// Runs the call if its caller may make it. Either way, the log says who asked for what.
Status Audited(const RpcContext& rpc, const rpc::Call& call, Effect effect,
               const google::protobuf::Message& request, const std::function<Status()>& run) {
  const net::Caller caller = net::CallerOf(call.grpc());
  // A policy has let it in already.
  const Status allowed =
      call.caller() != nullptr ? OkStatus() : net::CheckAdmin(caller, rpc.options.admin);
  // Strangers can ask at will, so a refusal has a rate. Each method has its own: a caller that
  // looks every second does not hide one that tries to drop.
  const std::string bucket = fmt::format("admin {}", call.method().name());
  if (!allowed.ok()) {
    call.Rejected(rpc::Rejection::kAuth);
    log::WriteAtRateOf(bucket + " refused", log::Level::kWarn, "admin_refused",
                       {{"method", call.method().name()},
                        {"request", TextOf(request)},
                        {"peer", call.grpc().peer()},
                        {"identity", IdentityOf(call, caller)},
                        {"trace", call.trace()}});
    return allowed;
  }
  Status done = run();
  // A change is never left out: an audit with holes says nothing.
  log::WriteAtRateOf(effect == Effect::kLooks ? bucket : "", log::Level::kInfo, "admin_call",
                     {{"method", call.method().name()},
                      {"request", TextOf(request)},
                      {"status", done.ok() ? "OK" : ToString(done)},
                      {"peer", call.grpc().peer()},
                      {"identity", IdentityOf(call, caller)},
                      {"trace", call.trace()}});
  return done;
}

// Not Call::Allows: what a caller is not shown it did not try to get.
bool Sees(const rpc::Call& call, std::string_view tenant) {
  return call.caller() == nullptr || call.caller()->rights.May(auth::Role::kOperator, tenant);
}

Status Report(const char* event, const std::string& what, const Result<DropResult>& result,
              v1::DropResponse* response) {
  CAIRN_RETURN_IF_ERROR(result.status());
  response->set_namespaces(result->namespaces);
  response->set_hidden_blocks(result->hidden_blocks);
  log::Info(event, {{"what", what}, {"hidden_blocks", log::Num(result->hidden_blocks)}});
  return OkStatus();
}

// On the executor: a drop is written to disk before it answers.
template <typename Request, typename Response>
void Add(rpc::CallServer* server, RpcContext* rpc, std::string_view method, Effect effect,
         std::function<Status(const rpc::Call&, const Request&, Response*)> handler) {
  rpc::AddUnary<Request, Response>(
      server, rpc, v1::Admin::service_full_name(), method, rpc->executor,
      [rpc, effect, handler = std::move(handler)](rpc::Call& call, const Request& request,
                                                  Response* response) {
        return Audited(*rpc, call, effect, request,
                       [&] { return handler(call, request, response); });
      });
}

void AddDrain(rpc::CallServer* server, RpcContext* rpc) {
  // A second signal would end the process at once.
  const auto begun = std::make_shared<std::atomic<bool>>(false);
  Add<v1::DrainRequest, v1::DrainResponse>(
      server, rpc, "Drain", Effect::kChanges,
      [rpc, begun](const auto& call, const auto&, auto* response) -> Status {
        if (!call.AllowsAll(auth::Role::kAdmin)) {
          return Errorf(StatusCode::kPermissionDenied,
                        "the policy does not make {} an admin for all tenants, whom a drain is for",
                        call.caller()->identity.Describe());
        }
        if (!rpc->begin_drain) {
          return Errorf(StatusCode::kUnimplemented, "this process cannot be drained by a call");
        }
        response->set_already(rpc->draining.load() || begun->exchange(true));
        if (response->already()) return OkStatus();
        log::Info("drain_asked_for", {});
        // The answer is a call under way, for which the end of the process waits.
        rpc->begin_drain();
        return OkStatus();
      });
}

}  // namespace

void AddAdminService(rpc::CallServer* server, RpcContext* rpc) {
  Add<v1::ListNamespacesRequest, v1::ListNamespacesResponse>(
      server, rpc, "ListNamespaces", Effect::kLooks,
      [rpc](const auto& call, const auto& request, auto* response) -> Status {
        if (!request.tenant().empty()) CAIRN_RETURN_IF_ERROR(CheckTenant(request.tenant()));
        for (const NamespaceInfo& info : rpc->engine->ListNamespaces(request.tenant())) {
          if (!Sees(call, info.spec.tenant)) continue;
          v1::NamespaceInfo* to = response->add_namespaces();
          wire::ToProto(info.spec, to->mutable_spec());
          if (call.caller() != nullptr &&
              !call.caller()->rights.May(auth::Role::kAdmin, info.spec.tenant)) {
            to->mutable_spec()->clear_salt();
          }
          to->set_fingerprint(std::string(info.fingerprint.View()));
          to->set_blocks(info.blocks);
          to->set_bytes(info.bytes);
          to->set_generation(info.generation);
          to->set_host_blocks(info.host_blocks);
          to->set_evicted_host_blocks(info.evicted_host_blocks);
          to->set_evicted_host_bytes(info.evicted_host_bytes);
          to->set_tenant_host_bytes(info.tenant_host_bytes);
          for (const TierRoom& room : info.tenant_room) {
            v1::TierRoom* const shown = to->add_tenant_room();
            shown->set_tier(wire::TierToProto(room.tier));
            shown->set_bytes(room.bytes);
            if (room.most) shown->set_most(*room.most);
            shown->set_guaranteed(room.guaranteed);
          }
          to->set_remembered_blocks(info.remembered_blocks);
          to->set_block_life_ms(static_cast<uint64_t>(
              std::chrono::duration_cast<std::chrono::milliseconds>(info.block_life).count()));
          for (const LearnedGroup& group : info.learned) {
            v1::LearnedGroup* const learned = to->add_learned();
            learned->set_name(group.name);
            learned->set_uses(group.uses);
            learned->set_block_seconds(group.block_seconds);
            learned->set_blocks(group.blocks);
          }
          for (const PoolBlocks& pool : info.pools) {
            v1::PoolBlocks* const stored = to->add_pools();
            stored->set_blocks(pool.blocks);
            stored->set_bytes(pool.bytes);
          }
        }
        return OkStatus();
      });
  Add<v1::DropNamespaceRequest, v1::DropResponse>(
      server, rpc, "DropNamespace", Effect::kChanges,
      [rpc](const auto& call, const auto& request, auto* response) -> Status {
        CAIRN_ASSIGN_OR_RETURN(const Digest fingerprint,
                               Digest::FromBytes(request.fingerprint(), "fingerprint"));
        CAIRN_RETURN_IF_ERROR(CheckNamespace(*rpc, call, fingerprint, auth::Role::kAdmin));
        return Report("namespace_dropped", fingerprint.Hex(),
                      rpc->engine->DropNamespace(fingerprint), response);
      });
  Add<v1::DropTenantRequest, v1::DropResponse>(
      server, rpc, "DropTenant", Effect::kChanges,
      [rpc](const auto& call, const auto& request, auto* response) -> Status {
        CAIRN_RETURN_IF_ERROR(CheckTenant(request.tenant()));
        CAIRN_RETURN_IF_ERROR(call.CheckAllowed(auth::Role::kAdmin, request.tenant()));
        return Report("tenant_dropped", request.tenant(), rpc->engine->DropTenant(request.tenant()),
                      response);
      });
  Add<v1::BumpEpochRequest, v1::DropResponse>(
      server, rpc, "BumpEpoch", Effect::kChanges,
      [rpc](const auto& call, const auto& request, auto* response) -> Status {
        CAIRN_ASSIGN_OR_RETURN(const Digest fingerprint,
                               Digest::FromBytes(request.fingerprint(), "fingerprint"));
        CAIRN_RETURN_IF_ERROR(CheckNamespace(*rpc, call, fingerprint, auth::Role::kAdmin));
        return Report("epoch_bumped", fingerprint.Hex(), rpc->engine->BumpEpoch(fingerprint),
                      response);
      });
  AddDrain(server, rpc);
}

}  // namespace cairn::cache
