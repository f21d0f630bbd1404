#include "tests/gpu/probe/kv_pool.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/support/half.h"

namespace cairn::gpu {

Result<KvPool> KvPool::Make(Bench* bench, int64_t tokens) {
  KvPool pool;
  kernels::batch::KvForm& form = pool.form_;
  form.kv_heads = bench->tiny() ? 1 : 8;
  form.group = bench->tiny() ? 2 : 4;
  form.head_dim = bench->tiny() ? 64 : 128;
  form.head_stride = 2 * static_cast<size_t>(form.block_tokens * form.head_dim);
  form.v_offset = form.head_stride * static_cast<size_t>(form.kv_heads);
  const size_t page_bytes = 2 * form.v_offset;
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> page(page_bytes / sizeof(uint16_t));
  for (uint16_t& number : page) number = testing::ToHalf(normal(rng));
  const int64_t pages = (tokens + form.block_tokens - 1) / form.block_tokens;
  pool.tokens_ = tokens;
  pool.bytes_ = static_cast<uint64_t>(pages) * page_bytes;
  CAIRN_ASSIGN_OR_RETURN(const uint64_t first, bench->Allocate(pool.bytes_));
  CAIRN_RETURN_IF_ERROR(bench->Move(first, reinterpret_cast<uint64_t>(page.data()), page_bytes));
  CAIRN_RETURN_IF_ERROR(bench->Repeat(first, page_bytes, pages));
  pool.memory_ = reinterpret_cast<const std::byte*>(first);
  std::vector<uint64_t> order(static_cast<size_t>(pages));
  std::iota(order.begin(), order.end(), uint64_t{0});
  std::shuffle(order.begin(), order.end(), rng);
  std::vector<const std::byte*> places;
  for (const uint64_t p : order) {
    places.push_back(pool.memory_ + p * page_bytes);
  }
  CAIRN_ASSIGN_OR_RETURN(pool.pages_, bench->Upload(places));
  return pool;
}

}  // namespace cairn::gpu
