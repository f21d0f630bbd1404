#include "services/cache/serve/rpc/session_stream.h"

#include "common/log/log.h"
#include "common/rpc/status.h"
#include "common/tenants/tenant_name.h"

namespace cairn::cache {
namespace {

// The memory of a session: its stream with gRPC, and its rows here and in the engine. Measured: 20
// to 40 KiB.
constexpr uint64_t kSessionBytes = 48 << 10;

}  // namespace

void SessionStream::Open(RpcContext* rpc, rpc::Method* method, const All& all,
                         std::unique_ptr<rpc::RawCall> call, const grpc::ByteBuffer& request) {
  auto stream = std::make_shared<SessionStream>(rpc, method, all, std::move(call));
  stream->Start(stream);
  if (const Status begun = stream->Begin(request); begun.ok()) {
    all.open->Add(stream);
    stream->TryWrite(stream->Event(false));
  } else {
    stream->End(rpc::ToGrpc(begun));
  }
}

Status SessionStream::Begin(const grpc::ByteBuffer& frame) {
  RpcContext& rpc = *rpc_;
  CAIRN_RETURN_IF_ERROR(call_.AdmitStream());
  v1::OpenSessionRequest request;
  CAIRN_RETURN_IF_ERROR(call_.Decode(frame, &request));
  CAIRN_RETURN_IF_ERROR(CheckClientName(request.client_name()));
  CAIRN_ASSIGN_OR_RETURN(const std::string tenant, TenantOf(request));
  CAIRN_ASSIGN_OR_RETURN(place_, call_.TakePlaceAt(all_.places, "sessions", "limits.sessions"));
  if (rpc.memory != nullptr) {
    CAIRN_ASSIGN_OR_RETURN(memory_, rpc.memory->Charge(MemoryItem::kSessions, kSessionBytes));
  }
  CAIRN_ASSIGN_OR_RETURN(session_, rpc.engine->OpenSession(request.client_name(), tenant));
  token_ = rpc.sessions->Add(*session_, call_);
  local_ = rpc.local;
  if (local_ != nullptr) {
    const bool may_write =
        call_.caller() == nullptr || call_.caller()->rights.May(auth::Role::kWriter, tenant);
    local_token_ = local_->Admit(*session_, request.tenant(), may_write);
  }
  {
    MutexLock lock(beat_mu_);
    last_beat_ = rpc.clock->Now();
  }
  log::Debug("session_opened", {{"client", request.client_name()}, {"trace", call_.trace()}});
  return OkStatus();
}

// A caller that names no tenant still gets a session: operators have none, and ask for statistics.
Result<std::string> SessionStream::TenantOf(const v1::OpenSessionRequest& request) const {
  const std::string& tenant = request.tenant();
  if (!tenant.empty()) {
    CAIRN_RETURN_IF_ERROR(CheckTenant(tenant));
    CAIRN_RETURN_IF_ERROR(call_.CheckAllowed(auth::Role::kReader, tenant));
    return tenant;
  }
  return std::string(call_.AllowsAll(auth::Role::kReader) ? std::string_view() : kNoTenant);
}

v1::SessionEvent SessionStream::Event(bool draining) const {
  const RpcContext& rpc = *rpc_;
  v1::SessionEvent event;
  event.set_session_id(token_.data(), token_.size());
  event.set_node_id(rpc.node_id);
  event.set_node_epoch(rpc.node_epoch);
  event.set_max_frame_bytes(rpc.options.max_frame_bytes);
  event.set_draining(draining);
  event.set_host(rpc.host);
  event.set_zone(rpc.zone);
  if (local_ != nullptr) {
    event.set_local_socket(local_->path());
    event.set_local_token(local_token_.data(), local_token_.size());
  }
  return event;
}

void SessionStream::Tick() {
  const RpcContext& rpc = *rpc_;
  const TimePoint now = rpc.clock->Now();
  const bool draining = rpc.draining.load(std::memory_order_relaxed);
  bool revoked = false, unread = false;
  {
    MutexLock lock(beat_mu_);
    if (rights_.Changed(rpc.access, call_.caller())) revoked_ = now;
    revoked = revoked_.has_value();
    unread = revoked && now - *revoked_ > rpc.options.patience;
  }
  if (revoked) {
    // Not only when the stream is over: a client that does not read it would keep the session.
    Close();
    End(rpc::ToGrpc(rpc::RightsHaveChanged()));
    if (unread) context().TryCancel();
    return;
  }
  MutexLock lock(beat_mu_);
  if (now - last_beat_ < rpc.options.heartbeat && draining == told_draining_) return;
  if (!TryWrite(Event(draining))) return;  // The next tick tries again.
  last_beat_ = now;
  told_draining_ = draining;
}

void SessionStream::Close() {
  if (!session_ || closed_.exchange(true)) return;
  // First the token, so that no call finds a session that is being closed.
  rpc_->sessions->Remove(token_);
  // Processes that still read and write in place keep the engine's session until they are gone.
  if (local_ == nullptr || !local_->Retire(local_token_)) rpc_->engine->CloseSession(*session_);
}

void SessionStream::OnOver(const grpc::Status& status) {
  Close();
  if (session_) all_.open->Remove(this);
  call_.End(rpc::FromGrpc(status));
}

}  // namespace cairn::cache
