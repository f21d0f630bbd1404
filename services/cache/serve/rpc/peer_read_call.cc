#include "services/cache/serve/rpc/peer_read_call.h"

#include <algorithm>
#include <utility>

#include "common/log/log.h"
#include "common/rpc/frames.h"
#include "services/cache/serve/rpc/peer_convert.h"

namespace cairn::cache {
namespace {

// A reader takes silence for a sign that this member hangs, and sees whole frames only: over a slow
// link that others use, too, a frame has to come several times within cluster.silence.
constexpr size_t kFrameBytes = 64 << 10;
constexpr Duration kLongestRead = std::chrono::seconds(30);
// How soon a wait for disk notices that its reader is gone.
constexpr Duration kLookForPeer = std::chrono::milliseconds(250);

}  // namespace

void PeerReads::Tick() {
  for (const auto& call : open.All()) call->Tick();
}

void PeerReadCall::Start(PeerReads* reads, std::unique_ptr<rpc::RawCall> raw,
                         const grpc::ByteBuffer& request) {
  auto call = std::make_shared<PeerReadCall>(reads, std::move(raw));
  call->self_ = call;
  reads->open.Add(call);
  call->call_.Received(request);
  if (const Status begun = call->Begin(request); !begun.ok()) call->End(begun);
}

PeerReadCall::PeerReadCall(PeerReads* reads, std::unique_ptr<rpc::RawCall> raw)
    : rpc::CallReactor(std::move(raw)),
      reads_(*reads),
      call_(reads->rpc, reads->method, &context()),
      grpc_call_(context().c_call()) {
  grpc_call_ref(grpc_call_);
}

Status PeerReadCall::Begin(const grpc::ByteBuffer& request) {
  CAIRN_RETURN_IF_ERROR(call_.Admit());
  v1::PeerReadRequest message;
  CAIRN_RETURN_IF_ERROR(call_.Decode(request, &message));
  CAIRN_ASSIGN_OR_RETURN(const PeerCaller caller, reads_.caller(call_, message.caller()));
  CAIRN_ASSIGN_OR_RETURN(const Digest fingerprint,
                         Digest::FromBytes(message.fingerprint(), "fingerprint"));
  CAIRN_ASSIGN_OR_RETURN(const BlockKey key, BlockKey::FromBytes(message.key(), "key"));
  CAIRN_ASSIGN_OR_RETURN(place_,
                         call_.TakePlaceAt(reads_.gate, "reads of other members", reads_.limit));
  std::vector<std::string> takers;
  CAIRN_ASSIGN_OR_RETURN(
      read_, reads_.host->BeginRead(caller, {fingerprint, message.bumps_digest()}, key, &takers));
  if (read_ != nullptr) {
    if (message.may_be_lent() && reads_.lender != nullptr) {
      LendOrOpen(caller.id);
    } else {
      Open(TimePoint());
    }
    return OkStatus();
  }
  message_.mutable_busy()->mutable_takers()->Assign(takers.begin(), takers.end());
  frame_ = rpc::ToFrame(message_);
  call_.Sent(frame_);
  StartWriteAndFinish(&frame_, call_.End(OkStatus()));
  return OkStatus();
}

void PeerReadCall::LendOrOpen(const std::string& member) {
  std::optional<DeviceBlock> block = read_->block().OnDevice();
  if (!block) return Open(TimePoint());
  ToProto(block->block, message_.mutable_block());
  reads_.lender->Lend(member, *std::move(block), [this](const Result<LentPlace>& place) {
    if (place.ok()) {
      ToProto(*place, message_.mutable_lent());
      frame_ = rpc::ToFrame(message_);
      call_.Sent(frame_);
      read_->SetTaken();
      read_.reset();
      place_ = Gate::Pass();
      return StartWriteAndFinish(&frame_, call_.End(OkStatus()));
    }
    message_.clear_block();
    // Not on the lender's thread.
    const Status posted = reads_.executor->Post([this] { Open(call_.Deadline(kLongestRead)); });
    if (!posted.ok()) End(posted);
  });
}

void PeerReadCall::Open(TimePoint deadline) {
  const Clock& clock = *reads_.rpc->clock;
  for (;;) {
    if (call_.cancelled()) return End(rpc::Gone());
    Result<StoredBlock> block = read_->block().Next(std::min(deadline, clock.Now() + kLookForPeer));
    if (block.ok()) {
      block_ = *std::move(block);
      break;
    }
    const bool waits = block.status().code() == StatusCode::kDeadlineExceeded;
    if (waits && deadline == TimePoint()) {
      const TimePoint until = call_.Deadline(kLongestRead);
      const Status posted = reads_.executor->Post([this, until] { Open(until); });
      if (!posted.ok()) End(posted);
      return;
    }
    if (!waits || clock.Now() >= deadline) return End(block.status());
  }
  ToProto(*block_, message_.mutable_block());
  SendNext();
}

void PeerReadCall::SendNext() {
  while (part_ < block_->bytes.size() && at_ == block_->bytes[part_].size()) {
    ++part_;
    at_ = 0;
  }
  if (part_ == block_->bytes.size()) {
    read_->SetTaken();
    return End(OkStatus());
  }
  const std::span<const std::byte> part = block_->bytes[part_];
  const size_t size = std::min(part.size() - at_, kFrameBytes);
  message_.set_data(part.data() + at_, size);
  at_ += size;
  frame_ = rpc::ToFrame(message_);
  message_.clear_block();
  call_.Sent(frame_);
  reads_.host->CountSent(size);
  {
    MutexLock lock(mu_);
    writing_since_ = reads_.rpc->clock->Now();
  }
  StartWrite(&frame_);
}

void PeerReadCall::Tick() {
  const RpcOptions& options = reads_.rpc->options;
  const char* why = nullptr;
  {
    MutexLock lock(mu_);
    // While a write is under way, nobody ends the read.
    if (!writing_since_ || cut_off_) return;
    const Duration stuck = reads_.rpc->clock->Now() - *writing_since_;
    if (stuck > options.fetch_stall) {
      why = "the reader took no frame for longer than rpc.fetch_stall";
    } else if (stuck > options.patience && read_->holds_up_others()) {
      why = "the reader took no frame for a while, and another member wants the block";
    }
    if (why == nullptr) return;
    cut_off_ = true;
  }
  call_.Rejected(rpc::Rejection::kStalled);
  log::Info("peer_read_cut_off", {{"why", why}, {"trace", call_.trace()}});
  grpc_call_cancel_with_status(grpc_call_, GRPC_STATUS_RESOURCE_EXHAUSTED, why, nullptr);
}

void PeerReadCall::OnDone() {
  reads_.open.Remove(this);
  std::shared_ptr<PeerReadCall> self = std::move(self_);  // May delete this.
}

void PeerReadCall::OnWriteDone(bool ok) {
  {
    MutexLock lock(mu_);
    writing_since_.reset();
  }
  frame_.Clear();
  if (!ok) return End(rpc::Gone());
  SendNext();
}

void PeerReadCall::End(const Status& status) {
  read_.reset();
  block_.reset();
  place_ = Gate::Pass();
  Finish(call_.End(status));
}

}  // namespace cairn::cache
