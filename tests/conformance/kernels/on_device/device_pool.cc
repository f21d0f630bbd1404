#include "tests/conformance/kernels/on_device/device_pool.h"

#include <algorithm>

namespace cairn::kernels::testing {
namespace {

constexpr uint64_t kChunkBytes = 64 << 20;
// The alignment that libraries of GPUs promise for an allocation.
constexpr uint64_t kAlignment = 256;

}  // namespace

std::byte* DevicePool::Take(Chunk* chunk, uint64_t bytes) {
  if (bytes > chunk->memory.bytes() - chunk->used) return nullptr;
  auto* const at = reinterpret_cast<std::byte*>(chunk->memory.address() + chunk->used);
  chunk->used += bytes;
  return at;
}

std::byte* DevicePool::Allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  // Two allocations never have the same address.
  const uint64_t whole = (bytes + kAlignment) / kAlignment * kAlignment;
  for (Chunk& chunk : chunks_) {
    if (std::byte* const at = Take(&chunk, whole); at != nullptr) {
      ++live_;
      return at;
    }
  }
  const uint64_t granularity = device_->info().granularity;
  const uint64_t wanted = std::max(whole, kChunkBytes);
  auto memory = device_->Allocate((wanted + granularity - 1) / granularity * granularity,
                                  /*exportable=*/false);
  if (!memory.ok()) return nullptr;
  chunks_.push_back({.memory = *std::move(memory)});
  ++live_;
  return Take(&chunks_.back(), whole);
}

void DevicePool::Free(std::byte* memory) {
  if (memory == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (--live_ > 0) return;
  for (Chunk& chunk : chunks_) chunk.used = 0;
}

}  // namespace cairn::kernels::testing
