// The readers at both ends of a ring and of the socket, fed with arbitrary bytes.
#include <cstdlib>
#include <cstring>

#include "protocol/shm/decode.h"
#include "protocol/shm/ring.h"
#include "tests/fuzz/input.h"

using namespace cairn;
using namespace cairn::shm;

namespace {

constexpr RingShape kShape{.entries = 4, .scratch_bytes = 4096};

void Expect(bool condition) {
  if (!condition) std::abort();
}

void NodeEnd(std::byte* base) {
  NodeRing ring(RingMemory::Borrow(base, kShape));
  for (int i = 0; i < 8; ++i) {
    Submission submission;
    if (ring.TakeOne(&submission) != NodeRing::Take::kOne) break;
    const auto call = Decode(submission, kShape.scratch_bytes);
    Completion done;
    done.cookie = submission.cookie;
    if (call.ok()) {
      Expect(uint64_t{call->input.offset} + call->input.bytes <= kShape.scratch_bytes);
      Expect(uint64_t{call->output.offset} + call->output.bytes <= kShape.scratch_bytes);
      std::vector<std::byte> copy(call->input.bytes);
      CopyIn(ring.scratch(), call->input, copy.data(), copy.size());
      std::vector<std::byte> answer(call->output.bytes);
      CopyOut(ring.scratch(), call->output, answer.data(), answer.size());
    }
    ring.Complete(done);
  }
  ring.Publish();
}

void ClientEnd(std::byte* base, const Submission& submission) {
  ClientRing ring(RingMemory::Borrow(base, kShape));
  Expect(ring.Submit(submission));
  Completion done;
  if (ring.ReapOne(&done) != ClientRing::Reap::kOne) return;
  if (!Check(done, submission).ok()) return;
  const auto call = Decode(submission, kShape.scratch_bytes);
  if (!call.ok()) return;
  (void)TextOf(done, ring.scratch(), call->output);
  if ((done.flags & kText) != 0) return;
  for (uint32_t i = 0; i < done.count && call->op == Op::kLocate; ++i) {
    PlaceEntry place;
    CopyIn(ring.scratch(), {call->output.offset + i * uint32_t{sizeof(PlaceEntry)}, 0}, &place, 1);
    if (CheckPlace(place, 1 << 20).ok() && place.state == 0) {
      Expect(place.offset + place.bytes <= 1 << 20);
    }
  }
}

}  // namespace

CAIRN_FUZZ_ENTRY(ring_decoder)(const uint8_t* data, size_t size) {
  alignas(4096) static std::byte memory[16384];
  static_assert(kShape.bytes() <= sizeof(memory));
  const std::span<const std::byte> message(reinterpret_cast<const std::byte*>(data), size);
  (void)DecodeHello(message);
  (void)DecodeWelcome(message, size % 3);
  (void)DecodeSegments(message, size % 5);

  std::memset(memory, 0, kShape.bytes());
  std::memcpy(memory, data, std::min(size, size_t{kShape.bytes()}));
  NodeEnd(memory);

  Submission submission;
  std::memcpy(static_cast<void*>(&submission), data, std::min(size, sizeof(submission)));
  std::memset(memory, 0, kShape.bytes());
  std::memcpy(memory, data, std::min(size, size_t{kShape.bytes()}));
  ClientEnd(memory, submission);
  return 0;
}
