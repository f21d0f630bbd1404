#pragma once
// The shared memory of one block: arrays with red zones between them, filled with NaN.

#include <cstddef>

namespace cairn::kernels::testing {

// One block at a time.
class SharedMemory {
 public:
  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Makes memory for the next block: all bytes are 0xff, which is NaN as half and as float, and
  // ASan lets nobody touch any. `bytes`: what the launch asks for.
  void Renew(size_t bytes);

  // How much one thread has taken so far.
  struct Cursor {
    size_t bytes = 0;
    size_t arrays = 0;
  };
  // The next array of a thread, aligned to 16 bytes. Null: the launch did not ask for that much.
  std::byte* Take(size_t bytes, Cursor* cursor);

 private:
  static constexpr size_t kRedZone = 64;
  static constexpr size_t kMostArrays = 32;

  std::byte* memory_ = nullptr;
  size_t mapped_ = 0;
  size_t limit_ = 0;
};

}  // namespace cairn::kernels::testing
