#pragma once
// The memory that a launch reads and writes, for the device's check that waits order it.

#include <cstdint>
#include <vector>

#include "tests/support/fake_device/control.h"

namespace cairn::kernels::testing {

struct Touched {
  std::vector<device::fake::Range> reads, writes;

  // `count` numbers from `first` on. Null or none: nothing.
  template <typename T>
  Touched& Reads(const T* first, int64_t count) {
    return Add(&reads, first, count);
  }
  template <typename T>
  Touched& Writes(const T* first, int64_t count) {
    return Add(&writes, first, count);
  }

 private:
  template <typename T>
  Touched& Add(std::vector<device::fake::Range>* to, const T* first, int64_t count) {
    if (first != nullptr && count > 0) {
      to->push_back({reinterpret_cast<uint64_t>(first), static_cast<uint64_t>(count) * sizeof(T)});
    }
    return *this;
  }
};

}  // namespace cairn::kernels::testing
