#include "clients/cpp/src/grpc/frame_call.h"

#include "clients/cpp/src/grpc/channel.h"
#include "common/rpc/status.h"
#include "protocol/wire/convert.h"

namespace cairn::client {

FrameCall::FrameCall(grpc::GenericStub* stub, const char* method, std::optional<TimePoint> deadline,
                     const std::string& trace) {
  Prepare(context_, deadline.value_or(TimePoint::max()), trace);
  context_.set_initial_metadata_corked(true);
  stream_ = stub->PrepareCall(&context_, method, &queue_);
}

FrameCall::~FrameCall() {
  const auto forever = TimePoint::max();
  if (started_ && !finished_) {
    // Cancelled calls complete at once, whatever the peer does.
    context_.TryCancel();
    if ((pending_ & kFinish) == 0) {
      Await(kWrite | kRead, forever);
      BeginFinish();
    }
    Await(kWrite | kRead | kFinish, forever);
  }
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

void FrameCall::Begin(Step step) {
  CAIRN_CHECK((pending_ & step) == 0);
  pending_ |= step;
  started_ = true;
}

FrameCall::Outcome FrameCall::Await(uintptr_t steps, TimePoint deadline) {
  while ((pending_ & steps) != 0) {
    void* tag = nullptr;
    bool ok = false;
    const auto next = deadline == TimePoint::max()
                          ? (queue_.Next(&tag, &ok) ? grpc::CompletionQueue::GOT_EVENT
                                                    : grpc::CompletionQueue::SHUTDOWN)
                          : queue_.AsyncNext(&tag, &ok, CallDeadline(deadline));
    if (next == grpc::CompletionQueue::TIMEOUT) return Outcome::kTimeout;
    if (next == grpc::CompletionQueue::SHUTDOWN) return Outcome::kClosed;
    const auto step = reinterpret_cast<uintptr_t>(tag);
    pending_ &= ~step;
    if (!ok) closed_ |= step;
    if (step == kFinish) finished_ = true;
  }
  return (closed_ & steps) == 0 ? Outcome::kDone : Outcome::kClosed;
}

void FrameCall::BeginWrite(const grpc::ByteBuffer& frame, bool last) {
  if (!started_) stream_->StartCall(nullptr);  // Corked: nothing is sent yet, and no tag comes.
  Begin(kWrite);
  if (last) {
    stream_->WriteLast(frame, grpc::WriteOptions(), reinterpret_cast<void*>(kWrite));
  } else {
    stream_->Write(frame, reinterpret_cast<void*>(kWrite));
  }
}

void FrameCall::BeginRead() {
  Begin(kRead);
  stream_->Read(&read_, reinterpret_cast<void*>(kRead));
}

void FrameCall::BeginFinish() {
  Begin(kFinish);
  stream_->Finish(&status_, reinterpret_cast<void*>(kFinish));
}

FrameCall::Outcome FrameCall::Write(const grpc::ByteBuffer& frame, bool last, TimePoint deadline) {
  if ((pending_ & kWrite) == 0) BeginWrite(frame, last);
  return Await(kWrite, deadline);
}

void FrameCall::Send(const grpc::ByteBuffer& frame) { BeginWrite(frame, true); }

FrameCall::Outcome FrameCall::Read(grpc::ByteBuffer* frame, bool ahead, TimePoint deadline) {
  if (((pending_ | closed_) & kRead) == 0) BeginRead();
  const Outcome outcome = Await(kRead, deadline);
  if (outcome == Outcome::kDone) {
    frame->Swap(&read_);
    read_.Clear();
    if (ahead) BeginRead();
  }
  return outcome;
}

Status FrameCall::Finish(TimePoint deadline) {
  if (!finished_ && (pending_ & kFinish) == 0) {
    // A read ahead and the status would both ask for the call's first metadata.
    if (Await(kRead, deadline) == Outcome::kTimeout) {
      return Errorf(StatusCode::kDeadlineExceeded, "the node did not end the call in time");
    }
    BeginFinish();
  }
  if (Await(kFinish, deadline) == Outcome::kTimeout) {
    return Errorf(StatusCode::kDeadlineExceeded, "the node did not end the call in time");
  }
  return rpc::FromGrpc(status_);
}

}  // namespace cairn::client
