#include "services/cache/rpc/push_stream.h"

#include "common/keys/call_limits.h"
#include "common/rpc/frames.h"
#include "protocol/frames/push_frame_reader.h"
#include "protocol/wire/convert.h"
#include "services/cache/rpc/request_fields.h"

namespace cairn::cache {

PushCall::PushCall(RpcContext* rpc, rpc::Method* method, std::unique_ptr<rpc::RawCall> call)
    : rpc::CallReactor(std::move(call)), rpc_(rpc), call_(rpc, method, &context()) {
  if (const Status admitted = call_.Admit(); !admitted.ok()) {
    Finish(call_.End(admitted));
    return;
  }
  StartRead(&frame_);
}

Status PushCall::Take() {
  RpcContext& rpc = *rpc_;
  call_.Received(frame_);
  grpc::ByteBuffer bytes;  // Released at the end, when the pieces are where they belong.
  bytes.Swap(&frame_);
  CAIRN_ASSIGN_OR_RETURN(const frames::PushFrameView frame, frames::ReadPushFrame(&bytes));
  if (!session_) {
    CAIRN_ASSIGN_OR_RETURN(session_, rpc.sessions->Find(frame.session_id));
    token_ = frame.session_id;
    commit_ids_ = frame.commit_ids;
    CAIRN_RETURN_IF_ERROR(CheckIds(commit_ids_, 0, kMaxPartsPerCall, "commit_ids"));
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
    if (piece.bytes == 0)
      return InvalidArgument("pieces[{}].data: got no bytes, expected at least 1", i);
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
  if (ok) {
    if (const Status taken = Take(); !taken.ok()) {
      Finish(call_.End(taken));
    } else {
      StartRead(&frame_);
    }
    return;
  }
  if (call_.cancelled()) {
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

void PushCall::OnDone() { delete this; }

}  // namespace cairn::cache
