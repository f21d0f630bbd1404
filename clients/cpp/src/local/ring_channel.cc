#include "clients/cpp/src/local/ring_channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "protocol/shm/decode.h"

namespace cairn::client::local {
namespace {

// The longest sleep without a look at the socket: a node that died wakes nobody.
constexpr Duration kLook = std::chrono::milliseconds(20);

Status Unavailable(const Status& why) {
  return Errorf(StatusCode::kUnavailable, "same-node session: {}", Message(why));
}

}  // namespace

RingChannel::RingChannel(shm::ClientRing ring, shm::Descriptor socket, Duration spin,
                         const Clock* clock, OnMessage on_message)
    : scratch_bytes_(ring.shape().scratch_bytes),
      spin_(spin),
      clock_(clock),
      on_message_(std::move(on_message)),
      socket_(std::move(socket)),
      ring_(std::move(ring)),
      scratch_(scratch_bytes_),
      slots_(ring_.shape().entries) {}

RingChannel::Slot* RingChannel::Submit(const Request& request, bool* ring) {
  const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                 [](const Slot& s) { return s.state == State::kFree; });
  if (slot == slots_.end()) return nullptr;
  shm::Submission s;
  s.cookie = static_cast<uint64_t>(slot - slots_.begin());
  s.op = static_cast<uint8_t>(request.op);
  s.flags = request.flags;
  s.argument = request.argument;
  if (!request.body.empty()) std::memcpy(s.body, request.body.data(), request.body.size());
  const auto input = scratch_.Take(static_cast<uint32_t>(request.input.size()));
  if (!input) return nullptr;
  const auto output = scratch_.Take(request.output_bytes);
  if (!output) {
    scratch_.Give(*input);
    return nullptr;
  }
  s.input = *input;
  s.output = *output;
  if (!request.input.empty()) {
    std::memcpy(ring_.scratch().data() + input->offset, request.input.data(), request.input.size());
  }
  slot->submission = s;
  slot->undo = request.undo;
  slot->state = State::kWaiting;
  CAIRN_CHECK(ring_.Submit(s));  // There are as many slots as entries.
  *ring = ring_.MustRing();
  return &*slot;
}

void RingChannel::Free(Slot& slot) {
  scratch_.Give(slot.submission.input);
  scratch_.Give(slot.submission.output);
  slot.undo = nullptr;
  slot.state = State::kFree;
}

void RingChannel::Finish(Slot& slot, const shm::Completion& completion) {
  const std::span<const std::byte> scratch = ring_.scratch();
  const shm::Submission& s = slot.submission;
  if (slot.state == State::kLeft) {
    if (slot.undo != nullptr && completion.code == 0) {
      const auto output = scratch.subspan(s.output.offset, s.output.bytes);
      slot.undo(completion, output);
    }
    Free(slot);
    return;
  }
  slot.answer.completion = completion;
  if (completion.code != 0) {
    std::string text = shm::TextOf(completion, scratch, s.output);
    slot.status = Status(static_cast<StatusCode>(completion.code),
                         text.empty() ? std::string("the node gives no reason") : text);
    slot.answer.output.clear();
  } else {
    // The one read of the answer: everything is checked in this copy.
    const auto output = scratch.subspan(s.output.offset, s.output.bytes);
    slot.status = OkStatus();
    slot.answer.output.assign(output.begin(), output.end());
  }
  scratch_.Give(s.input);
  scratch_.Give(s.output);
  slot.state = State::kDone;
}

void RingChannel::ReapAll() {
  if (!broken_.ok()) return;
  shm::Completion completion;
  for (;;) {
    switch (ring_.ReapOne(&completion)) {
      case shm::ClientRing::Reap::kNone:
        return;
      case shm::ClientRing::Reap::kBroken:
        BreakLocked(
            Errorf(StatusCode::kDataLoss, "node: a completion counter that is not possible"));
        return;
      case shm::ClientRing::Reap::kOne:
        break;
    }
    if (completion.cookie >= slots_.size()) {
      BreakLocked(
          Errorf(StatusCode::kDataLoss, "node: completion of unknown call {}", completion.cookie));
      return;
    }
    Slot& slot = slots_[completion.cookie];
    if (slot.state != State::kWaiting && slot.state != State::kLeft) {
      BreakLocked(
          Errorf(StatusCode::kDataLoss, "node: call {} was completed twice", completion.cookie));
      return;
    }
    if (const Status checked = shm::Check(completion, slot.submission); !checked.ok()) {
      BreakLocked(checked);
      return;
    }
    Finish(slot, completion);
  }
}

void RingChannel::BreakLocked(const Status& why) {
  if (broken_.ok()) broken_ = Unavailable(why);
  changed_.NotifyAll();
}

void RingChannel::Break(const Status& why) {
  MutexLock lock(mu_);
  BreakLocked(why);
}

Status RingChannel::broken() const {
  MutexLock lock(mu_);
  return broken_;
}

void RingChannel::Wake() {
  shm::Doorbell doorbell;
  doorbell.header.type = static_cast<uint16_t>(shm::MessageType::kDoorbell);
  const Status sent = shm::Send(socket_.get(), shm::AsBytes(doorbell));
  // A full queue holds doorbells that the node has not read: it will wake up.
  if (!sent.ok() && sent.code() != StatusCode::kResourceExhausted) Break(sent);
}

Status RingChannel::SayDevices(std::span<const std::string> uuids) {
  shm::Devices devices;
  devices.header.type = static_cast<uint16_t>(shm::MessageType::kDevices);
  for (const std::string& uuid : uuids.first(std::min(uuids.size(), shm::kMaxDevicesPerMessage))) {
    shm::SetText(devices.entries[devices.count++].uuid, uuid);
  }
  return shm::Send(socket_.get(), shm::AsBytes(devices));
}

bool RingChannel::Poll() {
  for (;;) {
    // One at a time: a message is handled before anybody acts on the next.
    MutexLock socket(socket_mu_);
    auto received = shm::Receive(socket_.get());
    if (!received.ok()) {
      if (received.status().code() == StatusCode::kNotFound) break;
      Break(received.status());
      break;
    }
    if (received->message.empty()) {
      Break(Errorf(StatusCode::kUnavailable, "the node hung up"));
      break;
    }
    if (const Status taken = on_message_(std::move(*received)); !taken.ok()) Break(taken);
  }
  return broken().ok();
}

void RingChannel::Changed() {
  ++changes_;
  if (followers_ > 0) changed_.NotifyAll();
}

// Without analysis: the leader reads ring_ without mu_. Only the leader reaps, so nobody moves what
// ClientRing::Wait compares with.
bool RingChannel::WaitAsLeader(TimePoint until) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  return ring_.Wait(spin_, until);
}

void RingChannel::WaitForNode(TimePoint until) {
  if (leading_) {
    ++followers_;
    const uint64_t seen = changes_;
    changed_.WaitUntil(mu_, until, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return changes_ != seen || !broken_.ok();
    });
    --followers_;
    return;
  }
  leading_ = true;
  mu_.Unlock();
  const TimePoint look = clock_->Now() + kLook;
  if (!WaitAsLeader(std::min(until, look))) Poll();
  mu_.Lock();
  leading_ = false;
  ReapAll();
  Changed();
}

Result<RingChannel::Answer> RingChannel::Run(const Request& request, TimePoint deadline) {
  const auto late = [] {
    return Errorf(StatusCode::kDeadlineExceeded,
                  "same-node session: no answer from the node in time");
  };
  MutexLock lock(mu_);
  if (!scratch_.CouldHold(request.input.size(), request.output_bytes)) {
    return Errorf(StatusCode::kResourceExhausted,
                  "same-node session: {} bytes in and {} out do not fit into the scratch's {}",
                  request.input.size(), request.output_bytes, scratch_bytes_);
  }
  Slot* slot = nullptr;
  bool ring = false;
  while (broken_.ok() && (slot = Submit(request, &ring)) == nullptr) {
    if (clock_->Now() >= deadline) return late();
    WaitForNode(deadline);
  }
  if (slot == nullptr) return broken_;
  if (ring) {
    mu_.Unlock();
    Wake();
    mu_.Lock();
  }
  while (slot->state != State::kDone && broken_.ok()) {
    WaitForNode(deadline);
    if (slot->state != State::kDone && clock_->Now() >= deadline) {
      slot->state = State::kLeft;
      return late();
    }
  }
  if (slot->state != State::kDone) {
    slot->state = State::kLeft;
    return broken_;
  }
  Status status = std::move(slot->status);
  Answer answer = std::move(slot->answer);
  slot->undo = nullptr;
  slot->state = State::kFree;
  Changed();
  CAIRN_RETURN_IF_ERROR(status);
  return answer;
}

bool RingChannel::Post(const Request& request) {
  bool ring = false;
  {
    MutexLock lock(mu_);
    if (!broken_.ok()) return false;
    // A leader reaps by itself, and must be the only one.
    if (!leading_) ReapAll();
    Slot* const slot = Submit(request, &ring);
    if (slot == nullptr) return false;
    slot->state = State::kLeft;
  }
  if (ring) Wake();
  return true;
}

}  // namespace cairn::client::local
