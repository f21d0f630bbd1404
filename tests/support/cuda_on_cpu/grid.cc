// Blocks, their threads and barriers. One grid runs at a time, so its state is one object.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/support/cuda_on_cpu/block_barriers.h"
#include "tests/support/cuda_on_cpu/fibre.h"
#include "tests/support/cuda_on_cpu/hand_over.h"
#include "tests/support/cuda_on_cpu/launch.h"
#include "tests/support/cuda_on_cpu/sanitizers.h"
#include "tests/support/cuda_on_cpu/shared_memory.h"
#include "tests/support/cuda_on_cpu/thread_copies.h"
#include "tests/support/half.h"

namespace cairn::kernels::testing {
namespace {

constexpr unsigned kLanes = 32;
constexpr unsigned kMostThreads = 1024;

enum class Waits { kForNothing, kForWarp, kForBlock, kForCondition, kEnded };

struct Thread {
  std::unique_ptr<Fibre> fibre;
  unsigned index = 0;
  dim3 place;
  Waits waits = Waits::kEnded;
  bool (*ready)(void*) = nullptr;  // The condition that it waits for.
  void* ready_state = nullptr;
  // Hand-overs use two sets of slots in turn, so that one meeting for each is enough: nobody writes
  // to a set again before all lanes have met once more, and so have taken what was in it.
  unsigned turn = 0;
  SharedMemory::Cursor shared;
  ThreadCopies copies;
};

// The addresses that TSan orders barriers by. They take turns: with one for all, a thread that is
// the last to leave a barrier would see what others had done before they came to the next one, and
// TSan would miss races between the two.
class BarrierOrder {
 public:
  // Of the barrier that is not open yet.
  char* address() { return &addresses_[turn_ % 2]; }
  void Open() { ++turn_; }

 private:
  char addresses_[2] = {};
  unsigned turn_ = 0;
};

struct Warp {
  unsigned live = 0;
  unsigned arrived = 0;
  alignas(16) char handed_over[2][kLanes][64];
  BarrierOrder order;
};

// Runs grids, one at a time.
class Grid {
 public:
  void Run(const LaunchShape& shape, const std::function<void()>& kernel);

  // For the running thread.
  const cuda::on_cpu::Place& place() const { return place_; }
  Thread& self() { return *self_; }
  Warp& warp() { return warps_[self_->index / kLanes]; }
  void BlockBarrier();
  void MeetWarp();
  void WaitUntil(bool (*ready)(void*), void* state);
  std::byte* TakeShared(size_t bytes);

 private:
  void Grow(unsigned threads);
  void RunBlock(uint64_t seed);
  void RunThread();
  void OpenBlock();
  void OpenWarp(unsigned index);
  void Fail(const char* what) const;

  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<unsigned> order_;
  Warp warps_[kMostThreads / kLanes];
  SharedMemory shared_;

  // The kernel of the running grid.
  const std::function<void()>* kernel_ = nullptr;
  LaunchShape shape_;
  cuda::on_cpu::Place place_;
  Thread* self_ = nullptr;
  unsigned live_ = 0;
  unsigned arrived_ = 0;
  char launched_ = 0, ended_ = 0;  // Addresses for TSan.
  BarrierOrder block_order_;
};

void Grid::Fail(const char* what) const {
  std::fprintf(stderr, "kernel, block %u %u %u: %s\n", place_.block.x, place_.block.y,
               place_.block.z, what);
  std::abort();
}

void Grid::Run(const LaunchShape& shape, const std::function<void()>& kernel) {
  shape_ = shape;
  kernel_ = &kernel;
  place_ = {{}, {}, {shape.threads, 1, 1}, shape.blocks};
  if (shape.threads == 0 || shape.threads > kMostThreads) Fail("a block has 1 to 1024 threads");
  Grow(shape.threads);
  const dim3& n = shape.blocks;
  const unsigned blocks = n.x * n.y * n.z;
  for (unsigned i = 0; i < blocks; ++i) {
    const unsigned b = shape.seed % 2 == 0 ? i : blocks - 1 - i;
    place_.block = {b % n.x, b / n.x % n.y, b / n.x / n.y};
    RunBlock(shape.seed == 0 ? 0 : shape.seed + b);
  }
  // Only here: blocks are not ordered among each other.
  sanitizers::Acquire(&ended_);
}

void Grid::Grow(unsigned threads) {
  while (threads_.size() < threads) {
    auto thread = std::make_unique<Thread>();
    thread->index = static_cast<unsigned>(threads_.size());
    thread->fibre = std::make_unique<Fibre>([this] {
      for (;;) {
        RunThread();
        self_->fibre->Pause();
      }
    });
    threads_.push_back(std::move(thread));
  }
}

void Grid::RunBlock(uint64_t seed) {
  const unsigned threads = shape_.threads;
  shared_.Renew(shape_.shared_bytes);
  for (Warp& warp : warps_) warp.live = warp.arrived = 0;
  live_ = threads;
  arrived_ = 0;
  order_.resize(threads);
  for (unsigned i = 0; i < threads; ++i) {
    Thread& t = *threads_[i];
    t.place = {i, 0, 0};
    t.waits = Waits::kForNothing;
    t.turn = 0;
    t.shared = {};
    ++warps_[i / kLanes].live;
    order_[i] = i;
  }
  for (unsigned i = threads; seed != 0 && i > 1; --i) {
    // A linear congruential generator (Knuth's MMIX): the same order on every machine.
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    std::swap(order_[i - 1], order_[(seed >> 33) % i]);
  }
  sanitizers::Release(&launched_);
  while (live_ > 0) {
    bool ran = false;
    for (const unsigned i : order_) {
      Thread& t = *threads_[i];
      if (t.waits == Waits::kForCondition && t.ready(t.ready_state)) t.waits = Waits::kForNothing;
      if (t.waits != Waits::kForNothing) continue;
      ran = true;
      self_ = &t;
      place_.thread = self_->place;
      self_->fibre->Resume();
    }
    if (!ran) Fail("threads wait for each other: not all of them reach a barrier");
  }
  if (EndBlockBarriers()) Fail("a block ends with bulk copies that nobody waited for");
}

void Grid::RunThread() {
  sanitizers::Acquire(&launched_);
  (*kernel_)();
  sanitizers::Release(&ended_);
  if (!self_->copies.empty()) Fail("a thread ends with copies that nobody waited for");
  self_->waits = Waits::kEnded;
  --live_;
  const unsigned w = self_->index / kLanes;
  // Those that still wait wait for one thread less.
  if (--warps_[w].live > 0 && warps_[w].arrived == warps_[w].live) OpenWarp(w);
  if (live_ > 0 && arrived_ == live_) OpenBlock();
}

void Grid::OpenBlock() {
  arrived_ = 0;
  block_order_.Open();
  for (unsigned i = 0; i < shape_.threads; ++i) {
    Thread& t = *threads_[i];
    if (t.waits == Waits::kForBlock) t.waits = Waits::kForNothing;
  }
}

void Grid::OpenWarp(unsigned index) {
  warps_[index].arrived = 0;
  warps_[index].order.Open();
  const unsigned end = std::min((index + 1) * kLanes, shape_.threads);
  for (unsigned i = index * kLanes; i < end; ++i) {
    Thread& t = *threads_[i];
    if (t.waits == Waits::kForWarp) t.waits = Waits::kForNothing;
  }
}

void Grid::BlockBarrier() {
  char* const order = block_order_.address();
  sanitizers::Release(order);
  if (++arrived_ == live_) {
    OpenBlock();
  } else {
    self_->waits = Waits::kForBlock;
    self_->fibre->Pause();
  }
  sanitizers::Acquire(order);
}

void Grid::MeetWarp() {
  Warp& w = warp();
  if (++w.arrived == w.live) {
    OpenWarp(self_->index / kLanes);
  } else {
    self_->waits = Waits::kForWarp;
    self_->fibre->Pause();
  }
}

void Grid::WaitUntil(bool (*ready)(void*), void* state) {
  if (ready(state)) return;
  self_->ready = ready;
  self_->ready_state = state;
  self_->waits = Waits::kForCondition;
  self_->fibre->Pause();
}

std::byte* Grid::TakeShared(size_t bytes) {
  std::byte* const array = shared_.Take(bytes, &self_->shared);
  if (array == nullptr) Fail("more shared memory than the launch asked for");
  return array;
}

// Never destroyed: fibres outlive nothing.
Grid& TheGrid() {
  static Grid* grid = new Grid;
  return *grid;
}

}  // namespace

void RunGrid(const LaunchShape& shape, const std::function<void()>& kernel) {
  static std::mutex* one_at_a_time = new std::mutex;
  const std::lock_guard lock(*one_at_a_time);
  TheGrid().Run(shape, kernel);
}

}  // namespace cairn::kernels::testing

namespace cairn::kernels::cuda::on_cpu {

using testing::TheGrid;

const Place& Here() { return TheGrid().place(); }

void BlockBarrier() { TheGrid().BlockBarrier(); }

void WarpBarrier() {
  char* const order = TheGrid().warp().order.address();
  testing::sanitizers::Release(order);
  TheGrid().MeetWarp();
  testing::sanitizers::Acquire(order);
}

// A call of memcpy would be checked by TSan, for which the slots are memory without order.
static void CopyBytes(void* to, const void* from, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    static_cast<volatile char*>(to)[i] = static_cast<const char*>(from)[i];
  }
}

void HandOver(const void* give, size_t bytes) {
  testing::Thread& self = TheGrid().self();
  self.turn ^= 1;
  CopyBytes(TheGrid().warp().handed_over[self.turn][self.index % 32], give, bytes);
  TheGrid().MeetWarp();
}

void Take(unsigned from, void* take, size_t bytes) {
  CopyBytes(take, TheGrid().warp().handed_over[TheGrid().self().turn][from], bytes);
}

const void* HandedOver(unsigned from) {
  return TheGrid().warp().handed_over[TheGrid().self().turn][from];
}

void WaitUntil(bool (*ready)(void*), void* state) { TheGrid().WaitUntil(ready, state); }

std::byte* TakeShared(size_t bytes) { return TheGrid().TakeShared(bytes); }

void IssueCopy(const Copy& copy) { TheGrid().self().copies.Issue(copy); }
void CommitCopies() { TheGrid().self().copies.Commit(); }
bool NextToLand(unsigned groups, Copy* copy) {
  return TheGrid().self().copies.NextToLand(groups, copy);
}

float HalfToFloat(uint16_t half) { return cairn::testing::FromHalf(half); }
uint16_t FloatToHalf(float x) { return cairn::testing::ToHalf(x); }

}  // namespace cairn::kernels::cuda::on_cpu
