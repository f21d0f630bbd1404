#include "services/worker/compute/device/row_gatherer.h"

#include "common/device/launched.h"
#include "services/worker/compute/device/arena.h"

namespace cairn::worker {

Result<uint64_t> RowGatherer::Gather(int begin_layer, int end_layer,
                                     std::span<const DeviceRun> runs, device::Stream* stream) {
  pieces_.clear();
  for (int layer = begin_layer; layer < end_layer; ++layer) {
    for (size_t head = 0; head < 2 * static_cast<size_t>(kv_.kv_heads); ++head) {
      const size_t offset =
          static_cast<size_t>(layer) * kv_.layer_bytes() + head * kv_.head_bytes();
      pieces_.push_back(At<std::byte>(pool_, offset));
    }
  }
  // Each row is a number of rows behind the pool's first one, the same number for all heads.
  index_.clear();
  for (const DeviceRun& run : runs) {
    CAIRN_CHECK(run.rows == 1);
    const int64_t token = run.tokens_before();
    const uint64_t slot = run.slots[static_cast<size_t>(token / kv_.block_tokens)]->address;
    index_.push_back(static_cast<uint32_t>((slot - pool_) / kv_.row_bytes() +
                                           static_cast<uint64_t>(token % kv_.block_tokens)));
  }
  const uint64_t stride = pieces_.size() * kv_.row_bytes();
  CAIRN_RETURN_IF_ERROR(rows_.Grow("rows of a decode step", stride * runs.size(), device_));
  CAIRN_RETURN_IF_ERROR(device::Launched(
      "gathering rows",
      kernels_.gather_pages(stream->native(),
                            {.pages = {.pieces = pieces_.data(),
                                       .piece_count = std::ssize(pieces_),
                                       .index = index_.data(),
                                       .blocks = std::ssize(index_),
                                       .stride = kv_.row_bytes(),
                                       .piece_bytes = static_cast<uint32_t>(kv_.row_bytes())},
                             .blocks = At<std::byte>(rows_.address(), 0),
                             .block_stride = stride,
                             .bfloat16_pages = false,
                             .faults = nullptr}),
      *device_));
  return rows_.address();
}

}  // namespace cairn::worker
