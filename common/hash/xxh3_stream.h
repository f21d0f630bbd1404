#pragma once
// XXH3-64 of bytes that come in pieces.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace cairn {

// Not thread-safe. The result is Xxh3 (hash.h) of all pieces together. For pieces of a few KiB it
// is equally fast.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(Xxh3Stream&&) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&&) noexcept;

  void Update(std::span<const std::byte> piece);
  uint64_t Digest() const;
  // Starts a new hash.
  void Reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cairn
