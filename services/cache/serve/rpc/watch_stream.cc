#include "services/cache/serve/rpc/watch_stream.h"

#include "common/rpc/status.h"
#include "protocol/wire/convert.h"

namespace cairn::cache {
namespace {

constexpr size_t kBatch = 256;

v1::Event EventToProto(const CacheEvent& event) {
  v1::Event out;
  out.set_kind(static_cast<v1::Event::Kind>(event.kind));
  out.set_node_epoch(event.node_epoch);
  out.set_sequence(event.sequence);
  if (event.kind == CacheEvent::Kind::kSnapshotEnd) return out;
  out.set_fingerprint(std::string(event.fingerprint.View()));
  if (event.kind == CacheEvent::Kind::kNamespaceDropped) return out;
  out.set_key(std::string(event.key.View()));
  if (event.parent) out.set_parent(std::string(event.parent->View()));
  out.set_tier(wire::TierToProto(event.tier));
  if (event.kind == CacheEvent::Kind::kStored) out.set_pool(event.pool);
  return out;
}

}  // namespace

void WatchStream::Open(RpcContext* rpc, rpc::Method* method, const All& all,
                       std::unique_ptr<rpc::RawCall> call, const grpc::ByteBuffer& request) {
  auto stream = std::make_shared<WatchStream>(rpc, method, all, std::move(call));
  stream->me_ = stream;
  stream->Start(stream);
  if (const Status begun = stream->Begin(request); begun.ok()) {
    stream->open_ = true;
    all.open->Add(stream);
    stream->Pump();
  } else {
    stream->End(rpc::ToGrpc(begun));
  }
}

Status WatchStream::Begin(const grpc::ByteBuffer& frame) {
  RpcContext& rpc = *rpc_;
  CAIRN_RETURN_IF_ERROR(call_.AdmitStream());
  v1::WatchRequest request;
  CAIRN_RETURN_IF_ERROR(call_.Decode(frame, &request));
  CAIRN_ASSIGN_OR_RETURN(const std::optional<Digest> fingerprint,
                         ToOptionalDigest(request.fingerprint(), "fingerprint"));
  CAIRN_RETURN_IF_ERROR(CheckSight(request, fingerprint));
  std::optional<SessionId> session;
  if (!request.session_id().empty()) {
    CAIRN_ASSIGN_OR_RETURN(session, rpc.sessions->Find(request.session_id(), call_));
  }
  CAIRN_ASSIGN_OR_RETURN(place_, call_.TakePlaceAt(all_.places, "watches", "rpc.max_watches"));
  CAIRN_ASSIGN_OR_RETURN(queue_, rpc.engine->Watch({.session = session,
                                                    .fingerprint = fingerprint,
                                                    .snapshot = request.snapshot()}));
  return OkStatus();
}

// The engine knows which tenant a session may see.
Status WatchStream::CheckSight(const v1::WatchRequest& request,
                               const std::optional<Digest>& fingerprint) const {
  if (fingerprint) return CheckNamespace(*rpc_, call_, *fingerprint, auth::Role::kReader);
  if (!request.session_id().empty() || call_.AllowsAll(auth::Role::kReader)) return OkStatus();
  return Errorf(StatusCode::kPermissionDenied,
                "session_id: missing, expected that of a session for one tenant: the policy does "
                "not make {} a reader for all tenants",
                call_.caller()->identity.Describe());
}

void WatchStream::Tick() {
  if (rights_.Changed(rpc_->access, call_.caller())) {
    return End(rpc::ToGrpc(rpc::RightsHaveChanged()));
  }
  Pump();
}

bool WatchStream::Step() {
  if (!idle()) return false;
  if (next_ == batch_.size()) {
    next_ = 0;
    batch_.clear();
    auto events = queue_->Next(kBatch, rpc_->clock->Now());
    if (!events.ok()) {
      End(rpc::ToGrpc(events.status()));
      return false;
    }
    batch_ = std::move(*events);
    if (batch_.empty()) return false;
  }
  if (TryWrite(EventToProto(batch_[next_]))) ++next_;
  return true;
}

void WatchStream::Pump() {
  // One pumps at a time. A caller that comes meanwhile leaves, so the one inside looks again after
  // letting go.
  do {
    if (pumping_.exchange(true)) return;
    const bool sent = Step();
    pumping_.store(false);
    if (!sent) return;
  } while (idle());
}

void WatchStream::OnIdle() {
  (void)rpc_->executor->Post([me = me_] {
    if (const auto stream = me.lock()) stream->Pump();
  });
}

void WatchStream::OnOver(const grpc::Status& status) {
  if (open_) all_.open->Remove(this);
  call_.End(rpc::FromGrpc(status));
}

}  // namespace cairn::cache
