#include "services/cache/rpc/fetch_stream.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include "cairn/v1/cache.pb.h"

namespace cairn::cache {

FetchCall::FetchCall(RpcContext* rpc, const grpc::CallbackServerContext* context, const grpc::ByteBuffer& request)
    : call_(rpc, Method::kFetch, context), builder_(rpc->options.fetch_frame_bytes) {
  rpc->metrics->Received(Method::kFetch, request.Length());
  const Status begun = Begin(request);
  {
    MutexLock lock(mu_);
    end_ = !begun.ok();
    status_ = begun;
  }
  Proceed();
}

Status FetchCall::Begin(const grpc::ByteBuffer& request) {
  RpcContext& rpc = call_.rpc();
  CAIRN_RETURN_IF_ERROR(call_.Admit());
  v1::FetchRequest message;
  grpc::ByteBuffer bytes(request);  // Deserialize empties its argument.
  if (!grpc::SerializationTraits<v1::FetchRequest>::Deserialize(&bytes, &message).ok()) {
    return InvalidArgument("fetch request: expected a message of type cairn.v1.FetchRequest");
  }
  CAIRN_ASSIGN_OR_RETURN(const SessionId session, rpc.sessions->Find(message.session_id()));
  CAIRN_ASSIGN_OR_RETURN(const FetchRange range, ToFetchRange(message));
  CAIRN_ASSIGN_OR_RETURN(stream_, rpc.engine->Fetch({.session = session,
                                                     .lease = range.lease,
                                                     .block_begin = range.block_begin,
                                                     .block_end = range.block_end,
                                                     .layer_begin = range.layer_begin,
                                                     .layer_end = range.layer_end,
                                                     .trace = call_.trace()}));
  return OkStatus();
}

Result<grpc::ByteBuffer> FetchCall::BuildFrame(bool* last) {
  const TimePoint deadline = call_.Deadline(call_.rpc().options.fetch_stall);
  *last = false;
  while (!builder_.full()) {
    if (slice_) {
      offset_ += builder_.Add(*slice_, offset_);
      if (offset_ == slice_->data.size()) slice_.reset();
      continue;
    }
    // What is in the frame may lie in the very buffers that the next block waits for: it is sent before anything is waited for.
    const Clock& clock = *call_.rpc().clock;
    const bool wait = builder_.empty();
    auto item = stream_->Next(wait ? deadline : clock.Now());
    if (!wait && item.status().code() == StatusCode::kDeadlineExceeded && clock.Now() < deadline) break;
    if (!item.ok()) {
      *last = true;
      if (builder_.empty()) return item.status();
      MutexLock lock(mu_);
      status_ = item.status();
      break;
    }
    if (!item->has_value()) {
      *last = true;
      break;
    }
    if (auto* failure = std::get_if<FetchFailure>(&**item)) {
      builder_.Add(*failure);
      continue;
    }
    slice_ = std::get<FetchedSlice>(std::move(**item));
    offset_ = 0;
    if (slice_->data.empty()) {  // A layer without KV: says so, and has nothing to send.
      builder_.Add(*slice_, 0);
      slice_.reset();
    }
  }
  return builder_.Take();
}

void FetchCall::Fill() {
  bool last = false;
  Result<grpc::ByteBuffer> frame = call_.cancelled() ? Errorf(StatusCode::kCancelled, "the client went away")
                                                     : BuildFrame(&last);
  {
    MutexLock lock(mu_);
    filling_ = false;
    if (!end_) {  // Else a write failed meanwhile: nobody wants the frame.
      if (frame.ok()) {
        end_ = last;
        // After the last slice there may be nothing left to say.
        if (frame->Length() > 0) next_ = std::move(*frame);
      } else {
        end_ = true;
        status_ = frame.status();
      }
    }
  }
  Proceed();
}

void FetchCall::Proceed() {
  bool write = false, fill = false, finish = false;
  Status status;
  {
    MutexLock lock(mu_);
    if (!writing_ && next_) {
      current_ = std::move(*next_);
      next_.reset();
      writing_ = write = true;
    }
    if (!end_ && !filling_ && !next_) filling_ = fill = true;
    if (end_ && !filling_ && !writing_ && !next_ && !finished_) {
      finished_ = finish = true;
      status = status_;
    }
  }
  // `finish` excludes the others. After the last call into gRPC this object may be gone.
  if (finish) {
    Finish(call_.End(status));
    return;
  }
  RpcContext& rpc = call_.rpc();
  if (fill) {
    // While it is counted as filling, the call cannot finish: StartWrite below is safe.
    if (const Status posted = rpc.fetch_executor->Post([this] { Fill(); }); !posted.ok()) {
      rpc.metrics->Rejected(Rejection::kOverload);
      bool again = false;
      {
        MutexLock lock(mu_);
        filling_ = false;
        end_ = true;
        status_ = posted;
        again = !write;
      }
      if (again) return Proceed();
    }
  }
  if (write) {
    rpc.metrics->Sent(Method::kFetch, current_.Length());
    StartWrite(&current_);
  }
}

void FetchCall::OnWriteDone(bool ok) {
  {
    MutexLock lock(mu_);
    writing_ = false;
    current_.Clear();
    if (!ok && !end_) {
      end_ = true;
      status_ = Errorf(StatusCode::kCancelled, "the client went away");
    }
    if (!ok) next_.reset();
  }
  Proceed();
}

void FetchCall::OnDone() { delete this; }

}  // namespace cairn::cache
