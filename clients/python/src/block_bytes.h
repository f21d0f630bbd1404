#pragma once
// The bytes of one block's rectangle in memory of the caller: pieces that follow each other.

#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace cairn::python {

// Never changes after construction, so any thread may use it. The memory behind it is the caller's.
template <typename Byte>
class BlockBytes {
 public:
  using Pieces = absl::InlinedVector<std::span<Byte>, 1>;

  BlockBytes() = default;
  explicit BlockBytes(Pieces pieces) : pieces_(std::move(pieces)) {
    begins_.reserve(pieces_.size());
    for (const auto& piece : pieces_) {
      begins_.push_back(size_);
      size_ += piece.size();
    }
  }

  uint64_t size() const { return size_; }

  // [offset, offset + bytes) where it lies in one piece; else empty. REQUIRES: in the block.
  std::span<Byte> Contiguous(uint64_t offset, uint64_t bytes) const {
    if (bytes == 0) return {};
    const size_t i = PieceAt(offset);
    const uint64_t inside = offset - begins_[i];
    if (inside + bytes > pieces_[i].size()) return {};
    return pieces_[i].subspan(inside, bytes);
  }

  // Calls take(run, done) for the runs that make up the range, in order; `done`: bytes before it.
  template <typename Take>
  void ForEachRun(uint64_t offset, uint64_t bytes, Take take) const {
    uint64_t done = 0;
    for (size_t i = bytes == 0 ? 0 : PieceAt(offset); done < bytes; ++i) {
      const uint64_t inside = offset + done - begins_[i];
      const uint64_t n = std::min<uint64_t>(pieces_[i].size() - inside, bytes - done);
      if (n > 0) take(pieces_[i].subspan(inside, n), done);
      done += n;
    }
  }

 private:
  // The last piece that begins at or before `offset`: pieces of 0 bytes come before it.
  size_t PieceAt(uint64_t offset) const {
    return static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), offset) -
                               begins_.begin() - 1);
  }

  Pieces pieces_;
  absl::InlinedVector<uint64_t, 1> begins_;
  uint64_t size_ = 0;
};

}  // namespace cairn::python
