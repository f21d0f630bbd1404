#include "services/cache/serve/rpc/peer_service.h"

#include <utility>

#include "cairn/v1/peer.grpc.pb.h"
#include "common/log/log.h"
#include "common/net/credentials.h"
#include "common/rpc/unary_call.h"
#include "protocol/wire/convert.h"
#include "services/cache/serve/rpc/peer_convert.h"

namespace cairn::cache {
namespace {

class PeerCalls {
 public:
  PeerCalls(Cluster* cluster, PeerRule rule) : host_(cluster->host()), rule_(std::move(rule)) {}

  // The caller, if it may call.
  Result<PeerCaller> CallerOf(const rpc::Call& call, const v1::PeerCaller& proto) const {
    CAIRN_ASSIGN_OR_RETURN(PeerCaller caller, ToCaller(proto));
    const net::Caller there = net::CallerOf(call.grpc());
    const Status fits = rule_.Check(there, caller.id);
    if (fits.ok()) return caller;
    call.Rejected(rpc::Rejection::kAuth);
    log::Warn(
        "peer_refused",
        {{"node_id", caller.id}, {"peer", call.grpc().peer()}, {"identity", there.Describe()}});
    return fits;
  }

  Status Hello(const rpc::Call& call, const v1::HelloRequest& request,
               v1::HelloResponse* response) {
    CAIRN_RETURN_IF_ERROR(CallerOf(call, request.caller()).status());
    CAIRN_ASSIGN_OR_RETURN(const PeerHello hello, ToHello(request));
    const PeerHelloAnswer answer = host_.Hello(hello);
    ToProto(answer.callee, response->mutable_callee());
    response->set_announced(answer.announced);
    return OkStatus();
  }
  Status Announce(const rpc::Call& call, const v1::AnnounceRequest& request,
                  v1::AnnounceResponse*) {
    CAIRN_ASSIGN_OR_RETURN(const PeerCaller caller, CallerOf(call, request.caller()));
    return host_.Announce(caller, ToAnnouncement(request));
  }
  Status Find(const rpc::Call& call, const v1::FindRequest& request, v1::FindResponse* response) {
    CAIRN_ASSIGN_OR_RETURN(const PeerCaller caller, CallerOf(call, request.caller()));
    const std::vector<WaymarkHash> waymarks(request.waymarks().begin(), request.waymarks().end());
    CAIRN_ASSIGN_OR_RETURN(const FoundHolders found, host_.Find(caller, waymarks));
    ToProto(found, response);
    return OkStatus();
  }
  Status Match(const rpc::Call& call, const v1::PeerMatchRequest& request,
               v1::PeerMatchResponse* response) {
    CAIRN_ASSIGN_OR_RETURN(const PeerCaller caller, CallerOf(call, request.caller()));
    CAIRN_ASSIGN_OR_RETURN(const Digest fingerprint,
                           Digest::FromBytes(request.fingerprint(), "fingerprint"));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, wire::KeysFromProto(request.keys()));
    const PeerLease lease = request.no_lease() ? PeerLease::kNone : PeerLease::kTake;
    CAIRN_ASSIGN_OR_RETURN(const PeerMatch match,
                           host_.Match(caller, {fingerprint, request.bumps_digest()}, keys, lease));
    ToProto(match, response);
    return OkStatus();
  }
  Status ExchangeBumps(const rpc::Call& call, const v1::BumpPage& request, v1::BumpPage* response) {
    CAIRN_ASSIGN_OR_RETURN(const PeerCaller caller, CallerOf(call, request.caller()));
    CAIRN_ASSIGN_OR_RETURN(const BumpPage page, ToBumpPage(request));
    CAIRN_ASSIGN_OR_RETURN(const BumpPage answer, host_.ExchangeBumps(caller, page));
    ToProto(answer, response);
    return OkStatus();
  }

 private:
  PeerHost& host_;
  const PeerRule rule_;
};

}  // namespace

std::shared_ptr<PeerReads> AddPeerService(rpc::CallServer* server, RpcContext* rpc,
                                          Cluster* cluster, PeerRule rule, Executor* executor,
                                          Gate* gate, BlockLender* lender) {
  // The methods own it together.
  const auto service = std::make_shared<PeerCalls>(cluster, std::move(rule));
  const std::string_view name = v1::Peer::service_full_name();
  Executor* const on_the_poller = nullptr;
  const auto add = [&]<typename Request, typename Response>(
                       std::string_view method, Executor* where,
                       Status (PeerCalls::*handler)(const rpc::Call&, const Request&, Response*)) {
    rpc::AddUnary<Request, Response>(
        server, rpc, name, method, where,
        [service, handler](rpc::Call& call, const Request& request, Response* response) {
          return ((*service).*handler)(call, request, response);
        });
  };
  add("Hello", on_the_poller, &PeerCalls::Hello);
  add("Announce", on_the_poller, &PeerCalls::Announce);
  add("Find", on_the_poller, &PeerCalls::Find);
  add("Match", on_the_poller, &PeerCalls::Match);
  // The bumps that it brings are written to disk.
  add("ExchangeBumps", executor, &PeerCalls::ExchangeBumps);
  // The server owns it with the method.
  const auto reads = std::make_shared<PeerReads>();
  reads->rpc = rpc;
  reads->method = rpc->metrics->Add(name, "Read");
  reads->host = &cluster->host();
  reads->lender = lender;
  reads->executor = executor;
  reads->gate = gate;
  reads->limit = "cluster.max_reads";
  reads->caller = [service](const rpc::Call& call, const v1::PeerCaller& caller) {
    return service->CallerOf(call, caller);
  };
  server->Add(reads->method->path(),
              [reads](std::unique_ptr<rpc::RawCall> call, const grpc::ByteBuffer& request) {
                PeerReadCall::Start(reads.get(), std::move(call), request);
              });
  return reads;
}

}  // namespace cairn::cache
