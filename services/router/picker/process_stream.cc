#include "services/router/picker/process_stream.h"

#include <utility>

#include "common/rpc/frames.h"

namespace cairn::router {

void ProcessStream::Start(const Exchange::Parts& parts, const rpc::Context* context,
                          rpc::Method* method, std::unique_ptr<rpc::RawCall> raw) {
  auto stream = std::make_shared<ProcessStream>(parts, context, method, std::move(raw));
  stream->self_ = stream;
  if (const Status admitted = stream->call_.AdmitStream(); !admitted.ok()) {
    stream->EndCall(admitted);
  } else {
    stream->StartRead(&stream->frame_);
  }
}

ProcessStream::ProcessStream(const Exchange::Parts& parts, const rpc::Context* context,
                             rpc::Method* method, std::unique_ptr<rpc::RawCall> call)
    : rpc::CallReactor(std::move(call)),
      counters_(parts.counters),
      call_(context, method, &this->context()),
      exchange_(std::make_shared<Exchange>(parts)) {
  counters_->Opened();
}

ProcessStream::~ProcessStream() { counters_->Closed(); }

void ProcessStream::EndCall(const Status& status) {
  exchange_->End();
  Finish(call_.End(status));
}

void ProcessStream::OnReadDone(bool ok) {
  // The gateway sends no more: the HTTP request is over, or its client has gone.
  if (!ok) return EndCall(call_.cancelled() ? rpc::Gone() : OkStatus());
  call_.Received(frame_);
  ext_proc::ProcessingRequest message;
  const Status decoded = call_.Decode(frame_, &message);
  frame_.Clear();
  if (!decoded.ok()) return EndCall(decoded);
  exchange_->Take(std::move(message),
                  [self = self_](Exchange::Step step) { self->Go(std::move(step)); });
}

void ProcessStream::Go(Exchange::Step step) {
  replies_ = std::move(step.replies);
  over_ = step.over;
  status_ = std::move(step.status);
  WriteNext();
}

void ProcessStream::WriteNext() {
  if (replies_.empty()) {
    if (over_) return EndCall(status_);
    return StartRead(&frame_);
  }
  frame_ = rpc::ToFrame(replies_.front().Take());
  replies_.pop_front();
  call_.Sent(frame_);
  StartWrite(&frame_);
}

void ProcessStream::OnWriteDone(bool ok) {
  frame_.Clear();
  if (!ok) return EndCall(rpc::Gone());
  WriteNext();
}

}  // namespace cairn::router
