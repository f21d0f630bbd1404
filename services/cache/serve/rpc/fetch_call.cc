#include "services/cache/serve/rpc/fetch_call.h"

#include <algorithm>
#include <utility>

#include "cairn/v1/cache.pb.h"
#include "common/log/log.h"
#include "protocol/wire/convert.h"
#include "services/cache/serve/rpc/request_fields.h"

namespace cairn::cache {
namespace {

// How soon a wait for disk notices that its client is gone.
constexpr Duration kLook = std::chrono::milliseconds(250);

frames::SliceHeader HeaderOf(const SliceInfo& slice) {
  return {.block = slice.block,
          .part = slice.part,
          .layer = slice.layer,
          .codec = slice.codec,
          .slice_bytes = slice.slice_bytes,
          .xxh3 = slice.xxh3,
          .tier = wire::TierToProto(slice.tier)};
}

frames::RowsHeader HeaderOf(const FetchedRows& rows) {
  return {.block = rows.block,
          .head = rows.head,
          .codec = rows.codec,
          .slice_xxh3 = rows.slice_xxh3,
          .xxh3 = rows.xxh3,
          .tier = wire::TierToProto(rows.tier)};
}

}  // namespace

void FetchCall::Start(RpcContext* rpc, rpc::Method* method, FetchCalls* all,
                      std::unique_ptr<rpc::RawCall> raw, const grpc::ByteBuffer& request) {
  auto call = std::make_shared<FetchCall>(rpc, method, all, std::move(raw));
  call->self_ = call;
  all->open.Add(call);
  call->call_.Received(request);
  if (const Status begun = call->Begin(request); !begun.ok()) call->End(begun);
}

FetchCall::FetchCall(RpcContext* rpc, rpc::Method* method, FetchCalls* all,
                     std::unique_ptr<rpc::RawCall> call)
    : rpc::CallReactor(std::move(call)),
      rpc_(rpc),
      all_(all),
      call_(rpc, method, &context()),
      connection_(call_.connection()),
      grpc_call_(context().c_call()),
      writer_(rpc->options.fetch_frame_bytes) {
  grpc_call_ref(grpc_call_);
}

FetchCall::~FetchCall() {
  // Bytes that gRPC still sends are held by the frames themselves.
  if (own_lease_) (void)rpc_->engine->Release(wanted_.session, {&*own_lease_, 1});
  grpc_call_unref(grpc_call_);
}

Status FetchCall::Begin(const grpc::ByteBuffer& request) {
  RpcContext& rpc = *rpc_;
  CAIRN_RETURN_IF_ERROR(call_.Admit());
  v1::FetchRequest message;
  CAIRN_RETURN_IF_ERROR(call_.Decode(request, &message));
  CAIRN_ASSIGN_OR_RETURN(const SessionId session, rpc.sessions->Find(message.session_id(), call_));
  CAIRN_ASSIGN_OR_RETURN(const FetchRange range, ToFetchRange(message));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<RowGroup> rows, ToRowGroups(message));
  wanted_ = {.session = session,
             .lease = range.lease,
             .block_begin = range.block_begin,
             .block_end = range.block_end,
             .layer_begin = range.layer_begin,
             .layer_end = range.layer_end,
             .reader_verifies = message.reader_verifies(),
             .trace = call_.trace(),
             .rows = rows};
  if (!message.has_lookup()) {
    Open();
    return OkStatus();
  }
  const v1::Lookup& lookup = message.lookup();
  all_->lookups->Match(
      call_,
      {.session = session,
       .fingerprint = lookup.fingerprint(),
       .keys = lookup.keys(),
       .lease_ttl_ms = kMaxTtlMs,
       .prefill_tokens_per_second = lookup.prefill_tokens_per_second(),
       .trace = call_.trace(),
       .holders = {lookup.holders().begin(), lookup.holders().end()},
       .next = lookup.next()},
      [this](Result<MatchResult> result, bool waited) { TakeMatch(std::move(result), waited); });
  return OkStatus();
}

void FetchCall::TakeMatch(Result<MatchResult> result, bool waited) {
  if (!result.ok()) return End(result.status());
  own_lease_ = std::exchange(result->lease, std::nullopt);
  v1::MatchResponse matched;
  ToProto(*result, &matched);
  writer_.Add(matched);
  if (own_lease_) {
    wanted_.lease = *own_lease_;
  } else {
    at_end_ = true;
  }
  if (!waited) return Open();
  // This thread is the source's.
  const Status posted = rpc_->fetch_executor->Post([this] { Open(); });
  if (posted.ok()) return;
  call_.Rejected(rpc::Rejection::kOverload);
  End(posted);
}

void FetchCall::Open() {
  if (!at_end_) {
    auto stream = rpc_->engine->Fetch(wanted_);
    if (!stream.ok()) return End(stream.status());
    stream_ = *std::move(stream);
    wanted_.rows = {};
  }
  Step(Wait::kNone);
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
  // Nothing is waited for: what is in the frame may lie in the very buffers that the next block
  // needs. Looking one item further than the frame holds tells whether it is the last one.
  while (Advance(TimePoint())) {
    if (at_end_ || writer_.full() || !AddItem()) return true;
  }
  return !writer_.empty();
}

bool FetchCall::AddItem() {
  if (const auto* failure = std::get_if<FetchFailure>(&*item_)) {
    writer_.Add(frames::FailedBlock{failure->block, wire::MissReasonToProto(failure->reason)});
    item_.reset();
  } else if (const auto* rows = std::get_if<FetchedRows>(&*item_)) {
    if (!writer_.Fits(rows->data.size())) return false;
    writer_.Add(HeaderOf(*rows), rows->data, rows->hold);
    item_.reset();
  } else {
    const auto& slice = std::get<FetchedSlice>(*item_);
    offset_ += writer_.Add(HeaderOf(slice), offset_, slice.data.subspan(offset_), slice.hold);
    if (offset_ == slice.data.size()) item_.reset();
  }
  return true;
}

void FetchCall::Step(Wait after) {
  RpcContext& rpc = *rpc_;
  auto share = std::make_shared<ByteShare>();
  if (after == Wait::kRoom) {
    *share = std::move(room_);
  } else {
    if (call_.cancelled()) return End(rpc::Gone());
    // Once it waits, another thread may drive it before this line is over.
    auto room = all_->budget->TakeOrWait(connection_, rpc.options.fetch_frame_bytes, this);
    if (!room) return;
    *share = *std::move(room);
  }
  if (call_.cancelled()) {
    share.reset();
    return End(rpc::Gone());
  }
  if (!Fill()) {
    share.reset();
    return WaitForDisk();
  }
  if (writer_.empty()) {
    share.reset();
    return End(end_);
  }
  share->ShrinkTo(writer_.data_bytes());
  frame_ = writer_.Take(std::move(share));
  call_.Sent(frame_);
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
  RpcContext& rpc = *rpc_;
  const TimePoint deadline = call_.Deadline(rpc.options.fetch_stall);
  const Status posted = rpc.fetch_executor->Post([this, deadline] {
    const Clock& clock = *rpc_->clock;
    for (TimePoint until; !Advance(until = std::min(deadline, clock.Now() + kLook));) {
      if (call_.cancelled()) return End(rpc::Gone());
      if (until == deadline || clock.Now() < until) return End(end_);
    }
    Step(Wait::kDisk);
  });
  if (posted.ok()) return;
  call_.Rejected(rpc::Rejection::kOverload);
  End(posted);
}

void FetchCall::OnRoom(ByteShare room) {
  room_ = std::move(room);
  // Not here: gRPC may hold locks. A call waits for one thing at a time, so the executor's queue
  // has a place for each.
  const Status posted = rpc_->fetch_executor->Post([this] { Step(Wait::kRoom); });
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
  if (!ok) return End(rpc::Gone());
  Step(Wait::kNone);
}

void FetchCall::Tick() {
  RpcContext& rpc = *rpc_;
  const char* why = nullptr;
  {
    MutexLock lock(mu_);
    if (!writing_since_ || cut_off_) return;
    const Duration stuck = rpc.clock->Now() - *writing_since_;
    if (stuck > rpc.options.fetch_stall) {
      why = "the reader took no frame for longer than rpc.fetch_stall";
    } else if (stuck > rpc.options.patience && all_->budget->short_of_room()) {
      why = "the reader took no frame for a while, and others wait for room";
    } else if (stuck > rpc.options.patience && stream_ != nullptr && stream_->holds_up_others()) {
      why = "the reader took no frame for a while, and others wait for buffers of limits.transfers";
    } else if (stuck > rpc.options.lease_grace && stream_ != nullptr && stream_->lease_ended()) {
      why = "the lease has ended, and the reader takes nothing";
    }
    if (why == nullptr) return;
    cut_off_ = true;
  }
  call_.Rejected(rpc::Rejection::kStalled);
  log::Info("fetch_cut_off", {{"why", why}, {"trace", call_.trace()}});
  // Lets go of the frame's bytes, and with them of their pins.
  grpc_call_cancel_with_status(grpc_call_, GRPC_STATUS_RESOURCE_EXHAUSTED, why, nullptr);
}

void FetchCall::OnCancel() {
  // Otherwise whoever drives it sees for itself.
  if (all_->budget->Forget(this)) End(rpc::Gone());
}

void FetchCall::OnDone() {
  all_->open.Remove(this);
  std::shared_ptr<FetchCall> self = std::move(self_);  // May delete this.
}

}  // namespace cairn::cache
