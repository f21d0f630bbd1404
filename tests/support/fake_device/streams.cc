// Streams and events of the fake device.

#include <algorithm>
#include <thread>

#include "tests/support/fake_device/machine.h"

namespace cairn::device::fake {

Code Machine::CreateStream(uint32_t device, StreamHandle** stream, Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("create_stream", device, failure);
  if (code != Code::kOk) return code;
  *stream = streams_.emplace_back(std::make_unique<StreamHandle>()).get();
  (*stream)->device = device;
  (*stream)->line = order_.NewLine();
  return Code::kOk;
}

Code Machine::BorrowStream(uint32_t device, void* native, StreamHandle** stream, Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("borrow_stream", device, failure);
  if (code != Code::kOk) return code;
  const auto lender = std::find_if(streams_.begin(), streams_.end(), [native](const auto& entry) {
    return entry.get() == native && entry->lender == nullptr;
  });
  if (lender == streams_.end() || (*lender)->device != device) {
    return Say(Code::kInvalid, "the device has no such stream", failure);
  }
  StreamHandle* const owner = lender->get();
  *stream = streams_.emplace_back(std::make_unique<StreamHandle>()).get();
  (*stream)->device = device;
  (*stream)->lender = owner;
  return Code::kOk;
}

void Machine::DestroyStream(StreamHandle* stream) {
  Lock lock(mu_);
  for (const auto& entry : streams_) {
    if (entry->lender == stream) {
      Report("stream " + std::to_string(stream->line) + " is destroyed while it is borrowed");
    }
  }
  if (!stream->work.empty() && !lost_[stream->device]) {
    Report("stream " + std::to_string(stream->line) + " is destroyed before '" +
           stream->work.front().what + "' has happened");
  }
  Drop(stream);
  streams_.remove_if([stream](const auto& entry) { return entry.get() == stream; });
}

void Machine::Drop(StreamHandle* stream) {
  for (StreamHandle::Work& work : stream->work) {
    if (work.drop) work.drop();
  }
  stream->work.clear();
}

Code Machine::CreateEvent(uint32_t device, EventHandle** event, Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("create_event", device, failure);
  if (code != Code::kOk) return code;
  *event = events_.emplace_back(std::make_unique<EventHandle>()).get();
  (*event)->device = device;
  return Code::kOk;
}

void Machine::DestroyEvent(EventHandle* event) {
  Lock lock(mu_);
  events_.remove_if([event](const auto& entry) { return entry.get() == event; });
}

Code Machine::Record(StreamHandle* stream, EventHandle* event, Failure* failure) {
  Lock lock(mu_);
  stream = Own(stream);
  const Code code = Enter("record", stream->device, failure);
  if (code != Code::kOk) return code;
  order_.Tick(stream->line);
  event->recorded = std::make_shared<Recorded>(Recorded{order_.Now(stream->line)});
  Push(stream, {.what = "record", .records = event->recorded});
  return Code::kOk;
}

Code Machine::Wait(StreamHandle* stream, EventHandle* event, Failure* failure) {
  Lock lock(mu_);
  stream = Own(stream);
  const Code code = Enter("wait", stream->device, failure);
  if (code != Code::kOk) return code;
  if (event->recorded == nullptr) {
    Report("stream " + std::to_string(stream->line) +
           " waits for an event that was never recorded: that waits for nothing");
    return Code::kOk;
  }
  order_.Learn(stream->line, event->recorded->clock);
  Push(stream, {.what = "wait", .waits = event->recorded});
  return Code::kOk;
}

Code Machine::Query(EventHandle* event, Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("query", event->device, failure);
  if (code != Code::kOk) return code;
  if (event->recorded == nullptr) {
    Report("the host asks for an event that was never recorded");
    return Code::kOk;
  }
  if (!event->recorded->done) Step();
  if (lost_[event->device]) return Enter("query", event->device, failure);
  if (!event->recorded->done) return Code::kNotReady;
  order_.Learn(kHost, event->recorded->clock);
  return Say(event->recorded->code, "a piece of work failed before the event", failure);
}

Code Machine::Synchronize(EventHandle* event, Failure* failure) {
  for (;;) {
    const Code code = Query(event, failure);
    if (code != Code::kNotReady) return code;
    if (!Step()) std::this_thread::yield();
  }
}

}  // namespace cairn::device::fake
