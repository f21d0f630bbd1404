#include "clients/cpp/src/raw_call.h"

#include "clients/cpp/src/channel.h"
#include "clients/cpp/wire/convert.h"
#include "clients/cpp/wire/status.h"

namespace cairn::client {

RawCall::RawCall(grpc::GenericStub* stub, const char* method, std::optional<TimePoint> deadline,
                 const std::string& trace) {
  Prepare(context_, deadline.value_or(TimePoint::max()), trace);
  stream_ = stub->PrepareCall(&context_, method, &queue_);
}

RawCall::~RawCall() {
  const auto forever = TimePoint::max();
  if (started_ && !finished_) {
    // Cancelled calls complete at once, whatever the peer does.
    context_.TryCancel();
    if (pending_ != Step::kNone && pending_ != Step::kFinish) Await(forever);
    if (pending_ != Step::kFinish) {
      Begin(Step::kFinish);
      stream_->Finish(&status_, reinterpret_cast<void*>(Step::kFinish));
    }
    Await(forever);
  }
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

void RawCall::Begin(Step step) {
  CAIRN_CHECK(pending_ == Step::kNone);
  pending_ = step;
}

RawCall::Outcome RawCall::Await(TimePoint deadline) {
  void* tag = nullptr;
  bool ok = false;
  const auto next = deadline == TimePoint::max()
                        ? (queue_.Next(&tag, &ok) ? grpc::CompletionQueue::GOT_EVENT
                                                  : grpc::CompletionQueue::SHUTDOWN)
                        : queue_.AsyncNext(&tag, &ok, WallDeadline(deadline));
  if (next == grpc::CompletionQueue::TIMEOUT) return Outcome::kTimeout;
  if (next == grpc::CompletionQueue::SHUTDOWN) return Outcome::kClosed;
  if (pending_ == Step::kFinish) finished_ = true;
  pending_ = Step::kNone;
  return ok ? Outcome::kDone : Outcome::kClosed;
}

RawCall::Outcome RawCall::Start(TimePoint deadline) {
  if (pending_ == Step::kNone) {
    Begin(Step::kStart);
    started_ = true;
    stream_->StartCall(reinterpret_cast<void*>(Step::kStart));
  }
  return Await(deadline);
}

RawCall::Outcome RawCall::Write(const grpc::ByteBuffer& frame, bool last, TimePoint deadline) {
  if (pending_ == Step::kNone) {
    Begin(Step::kWrite);
    if (last) {
      stream_->WriteLast(frame, grpc::WriteOptions(), reinterpret_cast<void*>(Step::kWrite));
    } else {
      stream_->Write(frame, reinterpret_cast<void*>(Step::kWrite));
    }
  }
  return Await(deadline);
}

RawCall::Outcome RawCall::Read(grpc::ByteBuffer* frame, TimePoint deadline) {
  if (pending_ == Step::kNone) {
    Begin(Step::kRead);
    stream_->Read(&read_, reinterpret_cast<void*>(Step::kRead));
  }
  const Outcome outcome = Await(deadline);
  if (outcome == Outcome::kDone) {
    frame->Swap(&read_);
    read_.Clear();
  }
  return outcome;
}

Status RawCall::Finish(TimePoint deadline) {
  if (!finished_ && pending_ == Step::kNone) {
    Begin(Step::kFinish);
    stream_->Finish(&status_, reinterpret_cast<void*>(Step::kFinish));
  }
  if (!finished_ && Await(deadline) == Outcome::kTimeout) {
    return Errorf(StatusCode::kDeadlineExceeded, "the node did not end the call in time");
  }
  return wire::FromGrpc(status_);
}

}  // namespace cairn::client
