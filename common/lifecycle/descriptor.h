#pragma once
// An open file of the operating system, with one owner.

#include <unistd.h>

#include <utility>

namespace cairn {

// A descriptor that the destructor closes. Movable. Not thread-safe.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { Reset(); }
  Descriptor(Descriptor&& other) noexcept : fd_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = other.Release();
    }
    return *this;
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset() {
    if (const int fd = Release(); fd >= 0) close(fd);
  }

 private:
  int fd_ = -1;
};

}  // namespace cairn
