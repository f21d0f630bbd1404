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

// Those for devices of a compute capability, by its first number. Constant.
std::span<const KernelTable> KernelTables(int family_major);

}  // namespace cairn::device::cuda
