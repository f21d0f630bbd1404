#include "tests/support/cuda_on_cpu/block_barriers.h"

#include <cstdint>
#include <cstdlib>

#include "kernels/cuda/on_cpu_sm90.h"
#include "tests/support/cuda_on_cpu/sanitizers.h"

namespace cairn::kernels::cuda::on_cpu {
namespace {

namespace sanitizers = testing::sanitizers;

// The contents of the 8 bytes of a barrier in shared memory.
struct Barrier {
  uint8_t count;    // Arrivals that a phase needs.
  uint8_t pending;  // How many of them are missing.
  uint16_t phase;   // 0 or 1.
  int32_t bytes;    // That were announced and have not landed.
};
static_assert(sizeof(Barrier) == sizeof(uint64_t));

struct NamedState {
  unsigned arrived = 0;
  unsigned generation = 0;
  char orders[2] = {};  // Their addresses are what TSan orders generations by, in turn.
};
struct PendingCopy {
  uint64_t* barrier;
  BoxCopy copy;
};

// Copies of the running block. One grid runs at a time. No container: TSan checks memory that
// fibres allocate and free in turn.
constexpr size_t kMostCopies = 1024;
PendingCopy pending_copies[kMostCopies];
size_t pending_count = 0;
NamedState named[16];

// In words: a call of memcpy would be checked by TSan.
void CopyChunk(uint8_t* to, const uint8_t* from) {
  for (int i = 0; i < 2; ++i) {
    reinterpret_cast<volatile uint64_t*>(to)[i] =
        from == nullptr ? 0 : reinterpret_cast<const uint64_t*>(from)[i];
  }
}

int32_t Land(const BoxCopy& c) {
  const MatrixFacts& m = c.matrix;
  for (int64_t r = 0; r < m.box_rows; ++r) {
    for (int64_t chunk = 0; chunk < 8; ++chunk) {
      const auto line = reinterpret_cast<uintptr_t>(c.to) + static_cast<uintptr_t>(r * 128);
      const auto to = line + ((static_cast<uintptr_t>(chunk) ^ (line >> 7 & 7)) * 16);
      const int64_t row = c.row + r, col = c.col + chunk * 8;
      const bool there = row >= 0 && row < m.rows && col < m.cols;
      CopyChunk(reinterpret_cast<uint8_t*>(to),
                there ? m.base + (row * m.cols + col) * 2 : nullptr);
    }
  }
  return static_cast<int32_t>(m.box_rows) * 128;
}

// What TSan orders a phase by. With one address for all phases, whoever is late to leave one would
// see what others had done before they came to the next one.
char* OrderOf(uint64_t* at, unsigned phase) { return reinterpret_cast<char*>(at) + phase; }

// Ends the phase if all have arrived and everything that was announced has been issued.
void Advance(uint64_t* at, bool lands) {
  auto& barrier = *reinterpret_cast<Barrier*>(at);
  if (barrier.pending > 0) return;
  // Copies land in no order that is promised: here the last one takes the place of each.
  for (size_t i = 0; lands && i < pending_count;) {
    if (pending_copies[i].barrier != at) {
      ++i;
      continue;
    }
    barrier.bytes -= Land(pending_copies[i].copy);
    pending_copies[i] = pending_copies[--pending_count];
  }
  if (barrier.bytes != 0) return;
  barrier.phase ^= 1;
  barrier.pending = barrier.count;
}

}  // namespace

void InitialiseBarrier(uint64_t* at, unsigned arrivals) {
  *reinterpret_cast<Barrier*>(at) = {static_cast<uint8_t>(arrivals), static_cast<uint8_t>(arrivals),
                                     0, 0};
}

void Arrive(uint64_t* at, uint32_t bytes) {
  auto& barrier = *reinterpret_cast<Barrier*>(at);
  sanitizers::Release(OrderOf(at, barrier.phase));
  barrier.bytes += static_cast<int32_t>(bytes);
  --barrier.pending;
  // Bytes land when somebody waits for them, as late as possible.
  Advance(at, false);
}

void IssueBoxCopy(const BoxCopy& copy, uint64_t* barrier) {
  // Whoever waits for the bytes comes behind whoever had them copied.
  sanitizers::Release(OrderOf(barrier, reinterpret_cast<const Barrier*>(barrier)->phase));
  if (pending_count == kMostCopies) std::abort();
  pending_copies[pending_count++] = {barrier, copy};
}

void WaitPhase(uint64_t* at, unsigned parity) {
  struct Wait {
    uint64_t* barrier;
    unsigned parity;
  } wait{at, parity};
  WaitUntil(
      [](void* state) {
        const auto& w = *static_cast<Wait*>(state);
        const auto& barrier = *reinterpret_cast<Barrier*>(w.barrier);
        if (barrier.phase == w.parity) Advance(w.barrier, true);
        return barrier.phase != w.parity;
      },
      &wait);
  sanitizers::Acquire(OrderOf(at, parity));
}

void NamedBarrier(unsigned id, unsigned threads) {
  NamedState& barrier = named[id];
  char* const order = &barrier.orders[barrier.generation % 2];
  sanitizers::Release(order);
  struct Wait {
    NamedState* barrier;
    unsigned generation;
  } wait{&barrier, barrier.generation};
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
  WaitUntil(
      [](void* state) {
        const auto& w = *static_cast<Wait*>(state);
        return w.barrier->generation != w.generation;
      },
      &wait);
  sanitizers::Acquire(order);
}

}  // namespace cairn::kernels::cuda::on_cpu

namespace cairn::kernels::testing {

bool EndBlockBarriers() {
  const bool left = cuda::on_cpu::pending_count > 0;
  cuda::on_cpu::pending_count = 0;
  for (auto& barrier : cuda::on_cpu::named) barrier.arrived = 0;
  return left;
}

}  // namespace cairn::kernels::testing
