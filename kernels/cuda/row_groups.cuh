#pragma once
// Groups of columns of a row that share a scale: neighbouring lanes have one group, each a chunk of
// it, and agree on its extremes by shuffles. Extremes do not depend on the order.

#include "kernels/cuda/batch.cuh"

namespace cairn::kernels::cuda {

struct GroupLane {
  bool mine = false;   // False: no such group or chunk; the lane only takes part in shuffles.
  bool first = false;  // Whether this lane is the first of its group.
  int row = 0;
  int group = 0;
  int column = 0;  // The chunk's first.
  int lanes = 1;   // Lanes of a group: a power of two.
};

// Calls body(lane) for all groups of the head. All threads of a block make the same number of
// calls. REQUIRES: group % kChunk == 0, dim % kChunk == 0, at most 32 chunks in a group.
template <int kChunk, typename Body>
CAIRN_DEVICE void ForEachGroup(const Head& head, int group, Body body) {
  const int groups = (head.dim + group - 1) / group;
  const int most = (group < head.dim ? group : head.dim) / kChunk;
  int lanes = 1;
  while (lanes < most) lanes *= 2;
  const int at_once = static_cast<int>(blockDim.x) / lanes, units = head.rows * groups;
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % lanes;
  for (int base = static_cast<int>(blockIdx.x) * at_once; base < units;
       base += static_cast<int>(gridDim.x) * at_once) {
    const int unit = base + thread / lanes;
    GroupLane lane;
    lane.row = unit / groups;
    lane.group = unit % groups;
    lane.column = lane.group * group + chunk * kChunk;
    const int end = (lane.group + 1) * group < head.dim ? (lane.group + 1) * group : head.dim;
    lane.mine = unit < units && lane.column < end;
    lane.first = lane.mine && chunk == 0;
    lane.lanes = lanes;
    body(lane);
  }
}

CAIRN_DEVICE float MostOfGroup(float x, int lanes) {
  for (int d = lanes / 2; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, d));
  return x;
}
CAIRN_DEVICE float LeastOfGroup(float x, int lanes) {
  for (int d = lanes / 2; d > 0; d /= 2) x = fminf(x, __shfl_xor_sync(kWholeWarp, x, d));
  return x;
}

// Calls body(row, column) for all chunks of kChunk columns, in no order.
template <int kChunk, typename Body>
CAIRN_DEVICE void ForEachChunk(const Head& head, Body body) {
  const int chunks = head.dim / kChunk, step = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < head.rows * chunks;
       i += step) {
    body(i / chunks, i % chunks * kChunk);
  }
}

}  // namespace cairn::kernels::cuda
