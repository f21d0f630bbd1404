#include "services/cache/rpc/fetch_stream.h"

#include <algorithm>
#include <utility>

#include "cairn/v1/cache.pb.h"
#include "services/cache/rpc/validate.h"
#include "services/common/log/log.h"

namespace cairn::cache {
namespace {

// How soon a wait for disk notices that its client is gone.
constexpr Duration kLook = std::chrono::milliseconds(250);

}  // namespace

void FetchCall::Start(RpcContext* rpc, FetchCalls* all, std::unique_ptr<RawCall> raw,
                      const grpc::ByteBuffer& request) {
  auto call = std::make_shared<FetchCall>(rpc, all, std::move(raw));
  call->self_ = call;
  all->open.Add(call);
  rpc->metrics->Received(Method::kFetch, request.Length());
  if (const Status begun = call->Begin(request); begun.ok()) {
    call->Step(Wait::kNone);
  } else {
    call->End(begun);
  }
}

FetchCall::FetchCall(RpcContext* rpc, FetchCalls* all, std::unique_ptr<RawCall> call)
    : CallReactor(std::move(call)),
      all_(all),
      call_(rpc, Method::kFetch, &context()),
      grpc_call_(context().c_call()),
      builder_(rpc->options.fetch_frame_bytes) {
  grpc_call_ref(grpc_call_);
}

FetchCall::~FetchCall() {
  // What gRPC still sends is held by the frames themselves.
  if (own_lease_) (void)call_.rpc().engine->Release(session_, {&*own_lease_, 1});
  grpc_call_unref(grpc_call_);
}

Status FetchCall::Begin(const grpc::ByteBuffer& request) {
  RpcContext& rpc = call_.rpc();
  CAIRN_RETURN_IF_ERROR(call_.Admit());
  v1::FetchRequest message;
  CAIRN_RETURN_IF_ERROR(Decode(request, &message));
  CAIRN_ASSIGN_OR_RETURN(session_, rpc.sessions->Find(message.session_id()));
  CAIRN_ASSIGN_OR_RETURN(const FetchRange range, ToFetchRange(message));
  if (message.has_lookup()) {
    CAIRN_ASSIGN_OR_RETURN(at_end_, MatchesNothing(message.lookup()));
    if (at_end_) return OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(stream_, rpc.engine->Fetch({.session = session_,
                                                     .lease = own_lease_.value_or(range.lease),
                                                     .block_begin = range.block_begin,
                                                     .block_end = range.block_end,
                                                     .layer_begin = range.layer_begin,
                                                     .layer_end = range.layer_end,
                                                     .reader_verifies = message.reader_verifies(),
                                                     .trace = call_.trace()}));
  return OkStatus();
}

Result<bool> FetchCall::MatchesNothing(const v1::Lookup& lookup) {
  CAIRN_ASSIGN_OR_RETURN(
      MatchResult result,
      all_->lookups->Match({.session = session_,
                            .fingerprint = lookup.fingerprint(),
                            .keys = lookup.keys(),
                            .lease_ttl_ms = kMaxTtlMs,
                            .prefill_tokens_per_second = lookup.prefill_tokens_per_second(),
                            .trace = call_.trace()}));
  own_lease_ = std::exchange(result.lease, std::nullopt);
  v1::MatchResponse matched;
  ToProto(result, &matched);
  builder_.Add(matched);
  return !own_lease_;
}

bool FetchCall::Advance(TimePoint deadline) {
  if (item_ || at_end_) return true;
  auto next = stream_->Next(deadline);
  offset_ = 0;
  if (!next.ok()) {
    end_ = next.status();
    at_end_ = end_.code() != StatusCode::kDeadlineExceeded;
    return at_end_;
  } else if (next->has_value()) {
    item_ = std::move(**next);
  } else {
    end_ = OkStatus();
    at_end_ = true;
  }
  return true;
}

bool FetchCall::Fill() {
  // Nothing is waited for: what is in the frame may lie in the very buffers that the next block needs. Looking one item further than the
  // frame holds tells whether it is the last one.
  while (Advance(TimePoint())) {
    if (at_end_ || builder_.full()) return true;
    if (const auto* failure = std::get_if<FetchFailure>(&*item_)) {
      builder_.Add(*failure);
      item_.reset();
      continue;
    }
    const auto& slice = std::get<FetchedSlice>(*item_);
    offset_ += builder_.Add(slice, offset_);
    if (offset_ == slice.data.size()) item_.reset();
  }
  return !builder_.empty();
}

void FetchCall::Step(Wait after) {
  RpcContext& rpc = call_.rpc();
  // Room that was promised is taken even if nobody needs it any more, or it would be lost.
  if (after != Wait::kRoom && call_.cancelled()) return End(Gone());
  // Once it waits, another thread may drive it before this line is over.
  auto share = all_->budget.Take(rpc.options.fetch_frame_bytes, this, after == Wait::kRoom);
  if (share == nullptr) return;
  if (call_.cancelled()) {
    share.reset();
    return End(Gone());
  }
  if (!Fill()) {
    share.reset();
    return WaitForDisk();
  }
  if (builder_.empty()) {
    share.reset();
    return End(end_);
  }
  share->ShrinkTo(builder_.data_bytes());
  frame_ = builder_.Take(std::move(share));
  rpc.metrics->Sent(Method::kFetch, frame_.Length());
  {
    MutexLock lock(mu_);
    writing_since_ = rpc.clock->Now();
  }
  // After these calls another thread may drive it, or it may be gone.
  if (at_end_) {
    StartWriteAndFinish(&frame_, call_.End(end_));
  } else {
    StartWrite(&frame_);
  }
}

void FetchCall::WaitForDisk() {
  RpcContext& rpc = call_.rpc();
  const TimePoint deadline = call_.Deadline(rpc.options.fetch_stall);
  const Status posted = rpc.fetch_executor->Post([this, deadline] {
    const Clock& clock = *call_.rpc().clock;
    for (TimePoint until; !Advance(until = std::min(deadline, clock.Now() + kLook));) {
      if (call_.cancelled()) return End(Gone());
      if (until == deadline || clock.Now() < until) return End(end_);
    }
    Step(Wait::kDisk);
  });
  if (posted.ok()) return;
  rpc.metrics->Rejected(Rejection::kOverload);
  End(posted);
}

void FetchCall::OnRoom() {
  // Not here: gRPC may hold locks. A call waits for one thing at a time, so the executor's queue has a place for each.
  const Status posted = call_.rpc().fetch_executor->Post([this] { Step(Wait::kRoom); });
  if (!posted.ok()) log::Warn("fetch_not_resumed", {{"status", ToString(posted)}});
}

void FetchCall::End(const Status& status) {
  stream_.reset();
  item_.reset();
  Finish(call_.End(status));
}

void FetchCall::OnWriteDone(bool ok) {
  {
    MutexLock lock(mu_);
    writing_since_.reset();
  }
  frame_.Clear();
  if (!ok) return End(Gone());
  Step(Wait::kNone);
}

void FetchCall::Tick() {
  RpcContext& rpc = call_.rpc();
  const char* why = nullptr;
  {
    MutexLock lock(mu_);
    if (!writing_since_ || cut_off_) return;
    const Duration stuck = rpc.clock->Now() - *writing_since_;
    if (stuck > rpc.options.fetch_stall) {
      why = "the reader took no frame for longer than rpc.fetch_stall";
    } else if (stuck > rpc.options.patience && all_->budget.short_of_room()) {
      why = "the reader took no frame for a while, and others wait for room";
    } else if (stuck > rpc.options.lease_grace && stream_ != nullptr && stream_->lease_ended()) {
      why = "the lease has ended, and the reader takes nothing";
    }
    if (why == nullptr) return;
    cut_off_ = true;
  }
  rpc.metrics->Rejected(Rejection::kStalled);
  log::Info("fetch_cut_off", {{"why", why}, {"trace", call_.trace()}});
  // Lets go of the frame's bytes, and with them of their pins.
  grpc_call_cancel_with_status(grpc_call_, GRPC_STATUS_RESOURCE_EXHAUSTED, why, nullptr);
}

void FetchCall::OnCancel() {
  // Otherwise whoever drives it sees for itself.
  if (all_->budget.Forget(this)) End(Gone());
}

void FetchCall::OnDone() {
  all_->open.Remove(this);
  std::shared_ptr<FetchCall> self = std::move(self_);  // May delete this.
}

}  // namespace cairn::cache
