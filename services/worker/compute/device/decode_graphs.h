#pragma once
// Graphs of decode steps: the launches of a step are noted once for each shape, and then done again
// by one call, since all that differs from step to step lies in lists in the device's memory
// (pass_lists.h).
//
// A shape that comes for the first time is launched as ever: a driver may load a kernel at its
// first launch, which a capture must not do. Few graphs are kept; the one that was not used for the
// longest time goes. A driver that cannot note them costs one try: from then on all steps are
// launched.
//
// One thread at a time makes passes; GetStats is thread-safe.

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>

#include "cairn/common/status.h"
#include "common/device/device.h"
#include "services/worker/compute/transformer.h"

namespace cairn::worker {

class DecodeGraphs {
 public:
  // The numbers that decide a step's launches and their arguments.
  struct Shape {
    int64_t rows = 0;
    int64_t splits = 0;  // Splits of attention, for the sequence that has most.
    int64_t logits = 0;  // Rows of which they are wanted.

    friend bool operator==(const Shape&, const Shape&) = default;
  };

  static constexpr size_t kMost = 16;

  // `enabled` false: nothing is noted.
  explicit DecodeGraphs(bool enabled) : enabled_(enabled) {}

  bool enabled() const { return enabled_; }
  // The number of splits with which a step that needs `splits` is computed: few different numbers,
  // so that a graph serves for many steps. Attention over more splits than a sequence has gives the
  // same bits.
  static int64_t SplitsFor(int64_t splits);
  // Does a step on `stream`: what `launch` launches there, and nothing else, which depends on
  // nothing but the shape and `addresses`, a number that grows when addresses have changed.
  // REQUIRES: no launch of a graph is under way.
  Status Run(const Shape& shape, uint64_t addresses, device::Stream* stream,
             const std::function<Status()>& launch);

  Transformer::GraphStats GetStats() const;

 private:
  struct Entry {
    Shape shape;
    device::Graph graph;  // None: the shape has come once.
  };
  // The entry of the shape, the last used one from now on. `known`: it had one before.
  Entry& Find(const Shape& shape, bool* known);

  bool enabled_;
  uint64_t addresses_ = 0;
  std::list<Entry> entries_;  // The last used one first.
  std::atomic<uint64_t> noted_{0}, launches_{0}, failures_{0};
};

}  // namespace cairn::worker
