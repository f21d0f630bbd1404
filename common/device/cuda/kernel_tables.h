#pragma once
// The tables of functions that launch kernels, which this library carries besides copies.

#include <cstdint>
#include <span>

namespace cairn::device::cuda {

struct KernelTable {
  const char* name = nullptr;
  uint32_t version = 0;
  const void* table = nullptr;
};

// Constant.
std::span<const KernelTable> KernelTables();

}  // namespace cairn::device::cuda
