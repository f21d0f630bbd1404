#pragma once
// Marks of the best scores by radix selection, and budgets that heads compete for: one block finds
// the best of one run of scores. The order is (larger score, lower index), as everywhere.

#include "cairn/kernels/selection/unit_kernels.h"
#include "kernels/cuda/units.cuh"

namespace cairn::kernels::cuda {

constexpr int kMarkThreads = 512;
constexpr int kMarkWarps = kMarkThreads / kWarp;
constexpr int kMarkBins = 2048;
constexpr int kBinsOfThread = kMarkBins / kMarkThreads;

// Larger numbers have smaller keys; the two zeros have the same.
CAIRN_DEVICE uint32_t RankKey(float score) {
  const uint32_t bits = BitsOf(score + 0.0f);
  return (bits & 0x80000000u) != 0 ? bits : bits ^ 0x7fffffffu;
}

// A block's work on one run of scores at a time. All threads of the block make all calls. A thread
// reads and writes every kMarkThreads-th mark only.
class Marker {
 public:
  static constexpr size_t kSharedBytes = (kMarkBins + kMarkWarps + 4) * sizeof(uint32_t);

  CAIRN_DEVICE explicit Marker(SharedArrays* shared)
      : bins_(shared->Take<uint32_t>(kMarkBins)),
        warps_(shared->Take<uint32_t>(kMarkWarps)),
        found_(shared->Take<uint32_t>(4)) {}

  // How many of `marks` there are.
  CAIRN_DEVICE int Marked(const uint8_t* marks, int n) const {
    uint32_t mine = 0;
    for (int i = Thread(); i < n; i += kMarkThreads) mine += Global(marks)[i];
    return static_cast<int>(SumBefore(mine).all);
  }

  // MarkTopArgs.
  CAIRN_DEVICE void MarkTop(const float* scores, int n, int64_t count, uint8_t* marks) const {
    if (count <= 0 || n <= 0) return;
    const auto key = [&](int i) { return RankKey(Global(scores)[i]); };
    const auto has_none = [&](int i) { return Global(marks)[i] == 0; };
    auto left = static_cast<uint32_t>(count < n ? count : n);
    uint32_t prefix = 0, known = 0, equal = 0;
    CAIRN_UNROLL
    for (int digit = 0; digit < 3; ++digit) {
      const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0;
      const uint32_t mask = digit == 2 ? 0x3ff : 0x7ff;
      for (int i = Thread(); i < kMarkBins; i += kMarkThreads) bins_[i] = 0;
      __syncthreads();
      for (int i = Thread(); i < n; i += kMarkThreads) {
        const uint32_t k = key(i);
        if (has_none(i) && (k & known) == prefix) atomicAdd(bins_ + (k >> shift & mask), 1u);
      }
      __syncthreads();
      FindBin(left, mask);
      prefix |= found_[0] << shift;
      known |= mask << shift;
      left -= found_[1];
      equal = found_[2];
    }
    for (int i = Thread(); i < n; i += kMarkThreads) {
      const uint32_t k = key(i);
      if (has_none(i) && (k < prefix || (k == prefix && left >= equal))) Global(marks)[i] = 1;
    }
    if (left >= equal) return;
    // The first ones of equal scores.
    uint32_t before = 0;
    for (int base = 0; base < n && before < left; base += kMarkThreads) {
      const int i = base + Thread();
      const bool one = i < n && has_none(i) && key(i) == prefix;
      const Sums sums = SumBefore(one ? 1 : 0);
      if (one && before + sums.before < left) Global(marks)[i] = 1;
      before += sums.all;
    }
  }

 private:
  struct Sums {
    uint32_t before = 0;  // Marks of the threads before this one.
    uint32_t all = 0;
  };

  CAIRN_DEVICE static int Thread() { return static_cast<int>(threadIdx.x); }

  // A barrier stands at its end.
  CAIRN_DEVICE Sums SumBefore(uint32_t x) const {
    const int lane = Thread() % kWarp, warp = Thread() / kWarp;
    uint32_t sum = x;
    CAIRN_UNROLL
    for (int d = 1; d < kWarp; d *= 2) {
      const uint32_t other = __shfl_sync(kWholeWarp, sum, lane - d);
      if (lane >= d) sum += other;
    }
    if (lane == kWarp - 1) warps_[warp] = sum;
    __syncthreads();
    Sums sums;
    sums.before = sum - x;
    CAIRN_UNROLL
    for (int w = 0; w < kMarkWarps; ++w) {
      const uint32_t of_warp = warps_[w];
      if (w < warp) sums.before += of_warp;
      sums.all += of_warp;
    }
    __syncthreads();
    return sums;
  }

  // found_: the bin that has the `left`-th number, how many are in those before, and in this one.
  // The last bin of `mask` if there are fewer numbers. A barrier stands at its end.
  CAIRN_DEVICE void FindBin(uint32_t left, uint32_t mask) const {
    uint32_t mine[kBinsOfThread], sum = 0;
    const int first = Thread() * kBinsOfThread;
    CAIRN_UNROLL
    for (int i = 0; i < kBinsOfThread; ++i) sum += mine[i] = bins_[first + i];
    const Sums sums = SumBefore(sum);
    uint32_t before = sums.before;
    CAIRN_UNROLL
    for (int i = 0; i < kBinsOfThread; ++i) {
      const auto bin = static_cast<uint32_t>(first + i);
      const bool here = before < left && before + mine[i] >= left;
      if (here || (sums.all < left && bin == mask)) {
        found_[0] = bin;
        found_[1] = before;
        found_[2] = mine[i];
      }
      before += mine[i];
    }
    __syncthreads();
  }

  uint32_t* const bins_;
  uint32_t* const warps_;
  uint32_t* const found_;
};

CAIRN_DEVICE void MarkTopUnits(const UnitBatch<MarkTopArgs>& batch) {
  SharedArrays shared;
  const Marker marker(&shared);
  const MarkTopArgs& a = batch.units[blockIdx.z];
  marker.MarkTop(a.scores, static_cast<int>(a.n), a.count, a.marks);
}

CAIRN_DEVICE void MarkBudgetUnits(const UnitBatch<MarkBudgetArgs>& batch) {
  SharedArrays shared;
  const Marker marker(&shared);
  const MarkBudgetArgs& a = batch.units[blockIdx.z];
  const auto n = static_cast<int>(a.n);
  const int64_t rows = *Global(a.rows);
  marker.MarkTop(a.scores, n, rows - marker.Marked(a.marks, n), a.marks);
}

// ---- budgets: heads side by side, then all scores of a unit, then heads again ----

CAIRN_DEVICE void SplitHeads(const UnitBatch<SplitBudgetArgs>& batch) {
  SharedArrays shared;
  const Marker marker(&shared);
  const SplitBudgetArgs& a = batch.units[blockIdx.z];
  if (blockIdx.x >= a.heads) return;
  const auto tokens = static_cast<int>(a.tokens);
  const int64_t at = blockIdx.x * a.tokens;
  uint8_t* const taken = a.taken + at;
  for (int i = static_cast<int>(threadIdx.x); i < tokens; i += kMarkThreads) {
    Global(taken)[i] = Global(a.marks + at)[i];
  }
  if (a.least <= 0) return;
  marker.MarkTop(a.scores + at, tokens, a.least - marker.Marked(taken, tokens), taken);
}

CAIRN_DEVICE void SplitRest(const UnitBatch<SplitBudgetArgs>& batch) {
  SharedArrays shared;
  const Marker marker(&shared);
  const SplitBudgetArgs& a = batch.units[blockIdx.z];
  const auto n = static_cast<int>(a.heads * a.tokens);
  marker.MarkTop(a.scores, n, a.total - marker.Marked(a.taken, n), a.taken);
}

CAIRN_DEVICE void SplitCounts(const UnitBatch<SplitBudgetArgs>& batch) {
  SharedArrays shared;
  const Marker marker(&shared);
  const SplitBudgetArgs& a = batch.units[blockIdx.z];
  if (blockIdx.x >= a.heads) return;
  const int rows = marker.Marked(a.taken + blockIdx.x * a.tokens, static_cast<int>(a.tokens));
  if (threadIdx.x == 0) Global(a.rows)[blockIdx.x] = rows;
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(512) cairn_mark_top(CAIRN_UNITS(MarkTopArgs) batch) {
  cairn::kernels::cuda::MarkTopUnits(batch);
}
CAIRN_KERNEL void __launch_bounds__(512) cairn_mark_budget(CAIRN_UNITS(MarkBudgetArgs) batch) {
  cairn::kernels::cuda::MarkBudgetUnits(batch);
}
CAIRN_KERNEL void __launch_bounds__(512) cairn_split_heads(CAIRN_UNITS(SplitBudgetArgs) batch) {
  cairn::kernels::cuda::SplitHeads(batch);
}
CAIRN_KERNEL void __launch_bounds__(512) cairn_split_rest(CAIRN_UNITS(SplitBudgetArgs) batch) {
  cairn::kernels::cuda::SplitRest(batch);
}
CAIRN_KERNEL void __launch_bounds__(512) cairn_split_counts(CAIRN_UNITS(SplitBudgetArgs) batch) {
  cairn::kernels::cuda::SplitCounts(batch);
}
