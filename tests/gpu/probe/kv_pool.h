#pragma once
// KV pages in the memory of a device, as a worker has them: binary16, the K of every head and then
// the V of every head in a page of 64 tokens.

#include "cairn/kernels/batch/attention.h"
#include "tests/gpu/probe/bench.h"

namespace cairn::gpu {

// Immutable; lives as long as the bench whose memory it is.
class KvPool {
 public:
  // The pages of `tokens` tokens, in a random order, with the same normally distributed numbers in
  // each. 8 heads of 128 dimensions, each with 4 query heads; a tiny bench has fewer.
  static Result<KvPool> Make(Bench* bench, int64_t tokens);

  const kernels::batch::KvForm& form() const { return form_; }
  int64_t query_heads() const { return int64_t{form_.kv_heads} * form_.group; }
  int64_t query_width() const { return query_heads() * form_.head_dim; }
  int64_t tokens() const { return tokens_; }
  uint64_t bytes() const { return bytes_; }
  // Where the memory of all pages begins.
  const std::byte* memory() const { return memory_; }
  // In the device's memory, in the order of tokens.
  const std::byte* const* pages() const { return pages_; }

 private:
  kernels::batch::KvForm form_;
  int64_t tokens_ = 0;
  uint64_t bytes_ = 0;
  const std::byte* memory_ = nullptr;
  const std::byte* const* pages_ = nullptr;
};

}  // namespace cairn::gpu
