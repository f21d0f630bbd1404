#include "services/cache/serve/rpc/push_stream.h"

#include "common/keys/call_limits.h"
#include "common/log/log.h"
#include "common/rpc/frames.h"
#include "protocol/frames/push_frame_reader.h"
#include "protocol/wire/convert.h"
#include "services/cache/serve/rpc/request_fields.h"

namespace cairn::cache {

void PushCall::Start(RpcContext* rpc, rpc::Method* method, rpc::StreamSet<PushCall>* all,
                     std::unique_ptr<rpc::RawCall> raw) {
  auto call = std::make_shared<PushCall>(rpc, method, all, std::move(raw));
  call->self_ = call;
  all->Add(call);
  if (const Status admitted = call->call_.AdmitStream(); !admitted.ok()) {
    call->Finish(call->call_.End(admitted));
  } else {
    call->Read();
  }
}

PushCall::PushCall(RpcContext* rpc, rpc::Method* method, rpc::StreamSet<PushCall>* all,
                   std::unique_ptr<rpc::RawCall> call)
    : rpc::CallReactor(std::move(call)),
      rpc_(rpc),
      all_(all),
      call_(rpc, method, &context()),
      grpc_call_(context().c_call()) {
  grpc_call_ref(grpc_call_);
}

PushCall::~PushCall() { grpc_call_unref(grpc_call_); }

void PushCall::Read() {
  {
    MutexLock lock(mu_);
    reading_since_ = rpc_->clock->Now();
  }
  StartRead(&frame_);
}

void PushCall::Tick() {
  {
    MutexLock lock(mu_);
    if (!reading_since_ || cut_off_) return;
    if (rpc_->clock->Now() - *reading_since_ <= rpc_->options.push_stall) return;
    cut_off_ = true;
  }
  call_.Rejected(rpc::Rejection::kStalled);
  constexpr char kWhy[] = "the client sent no frame for longer than rpc.push_stall";
  log::Info("push_cut_off", {{"why", kWhy}, {"trace", call_.trace()}});
  grpc_call_cancel_with_status(grpc_call_, GRPC_STATUS_DEADLINE_EXCEEDED, kWhy, nullptr);
}

Status PushCall::Take() {
  RpcContext& rpc = *rpc_;
  call_.Received(frame_);
  grpc::ByteBuffer bytes;  // Released at the end, when the pieces are where they belong.
  bytes.Swap(&frame_);
  CAIRN_ASSIGN_OR_RETURN(const frames::PushFrameView frame, frames::ReadPushFrame(&bytes));
  if (!session_) {
    CAIRN_RETURN_IF_ERROR(call_.TakePlace());
    CAIRN_ASSIGN_OR_RETURN(session_, rpc.sessions->Find(frame.session_id, call_));
    token_ = frame.session_id;
    commit_ids_ = frame.commit_ids;
    CAIRN_RETURN_IF_ERROR(CheckIds(commit_ids_, 0, kMaxPartsPerCall, "commit_ids"));
  } else if (const auto open = rpc.sessions->Find(token_, call_); !open.ok()) {
    return open.status();  // The policy may have taken it away meanwhile.
  } else if (!frame.commit_ids.empty()) {
    return InvalidArgument("commit_ids: got {} in a later frame, expected them in the first",
                           frame.commit_ids.size());
  } else if (!frame.session_id.empty() && frame.session_id != token_) {
    return InvalidArgument("session_id: got another one than in the first frame, expected none");
  }
  for (size_t i = 0; i < frame.pieces.size(); ++i) {
    const frames::PushFrameView::Piece& piece = frame.pieces[i];
    if (piece.reservation_id == 0) {
      return InvalidArgument("pieces[{}].reservation_id: got 0, expected an id that Reserve gave",
                             i);
    }
    if (piece.bytes == 0) {
      return InvalidArgument("pieces[{}].data: got no bytes, expected at least 1", i);
    }
    if (piece.bytes > rpc.options.max_frame_bytes) {
      return InvalidArgument("pieces[{}].data: got {} bytes, expected at most {}", i, piece.bytes,
                             rpc.options.max_frame_bytes);
    }
    if (piece.offset > kMaxPartBytes) {
      return InvalidArgument("pieces[{}].offset: got {}, expected 0 to {}", i, piece.offset,
                             kMaxPartBytes);
    }
    uint64_t offset = piece.offset;
    for (const std::span<const std::byte> data : piece.data) {
      const Status written = rpc.engine->Write(*session_, piece.reservation_id, offset, data);
      if (!written.ok()) return Annotate(written, fmt::format("pieces[{}]", i));
      offset += data.size();
    }
    bytes_ += piece.bytes;
  }
  return OkStatus();
}

void PushCall::OnReadDone(bool ok) {
  bool cut_off = false;
  {
    MutexLock lock(mu_);
    reading_since_.reset();
    cut_off = cut_off_;
  }
  if (ok) {
    if (const Status taken = Take(); !taken.ok()) {
      Finish(call_.End(taken));
    } else {
      Read();
    }
    return;
  }
  // A call that was cut off has not come to its end, whatever gRPC knows yet.
  if (cut_off || call_.cancelled()) {
    Finish(call_.End(rpc::Gone()));
    return;
  }
  if (commit_ids_.empty()) return Answer(v1::PushResponse());
  RpcContext& rpc = *rpc_;
  if (const Status posted = rpc.executor->Post([this] { Commit(); }); !posted.ok()) {
    call_.Rejected(rpc::Rejection::kOverload);
    Finish(call_.End(posted));
  }
}

void PushCall::Commit() {
  // gRPC may tell of the stream's end before it tells that the client broke it off.
  if (call_.cancelled()) return Finish(call_.End(rpc::Gone()));
  const auto open = rpc_->sessions->Find(token_, call_);
  if (!open.ok()) return Finish(call_.End(open.status()));
  const auto results = rpc_->engine->Commit(*session_, commit_ids_, call_.trace());
  if (!results.ok()) return Finish(call_.End(results.status()));
  v1::PushResponse response;
  for (const Status& result : *results) wire::ToProto(result, response.add_committed());
  Answer(std::move(response));
}

void PushCall::Answer(v1::PushResponse response) {
  response.set_bytes(bytes_);
  frame_ = rpc::ToFrame(response);
  StartWriteAndFinish(&frame_, call_.End(OkStatus()));
}

void PushCall::OnDone() {
  all_->Remove(this);
  const std::shared_ptr<PushCall> self = std::move(self_);  // May delete this.
}

}  // namespace cairn::cache
