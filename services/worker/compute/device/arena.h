#pragma once
// Places in one allocation of device memory: first all of them are taken, then the memory is
// allocated once, and then places become addresses. Not thread-safe.

#include <cstddef>
#include <cstdint>

namespace cairn::worker {

class ArenaPlan {
 public:
  // The place of `count` objects, aligned as coalesced accesses want it.
  template <typename T>
  size_t Take(int64_t count) {
    constexpr size_t kAlignment = 256;
    const size_t place = bytes_;
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return place;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

template <typename T>
T* At(uint64_t base, size_t place) {
  return reinterpret_cast<T*>(base + place);
}

}  // namespace cairn::worker
