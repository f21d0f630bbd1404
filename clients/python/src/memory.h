#pragma once
// Memory of Python objects, used in place.

#include <absl/container/inlined_vector.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "clients/python/src/block_bytes.h"
#include "clients/python/src/field.h"

namespace cairn::python {

enum class Access { kRead, kWrite };

// The bytes of one object that exports its memory: by the buffer protocol (bytes, bytearray,
// memoryview, mmap, numpy), or otherwise by DLPack (torch). Nothing is copied or converted. Objects
// that would need that are refused. While this exists the object lives and cannot move its memory.
// Make and destroy it with the GIL held. Any thread may use it without the GIL.
class Memory {
 public:
  // INVALID_ARGUMENT, naming `field`, for memory that is not contiguous, not writable, or not this
  // machine's; TypeError for an object without memory.
  Memory(nanobind::handle object, Access access, const Field& field);
  Memory(Memory&&) = default;
  Memory& operator=(Memory&&) = default;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  struct Release {
    void operator()(Py_buffer* view) const;
  };
  void FromBuffer(nanobind::handle object, Access access, const Field& field);
  void FromDlpack(nanobind::handle object, Access access, const Field& field);

  std::unique_ptr<Py_buffer, Release> view_;
  nanobind::ndarray<nanobind::ro> array_;
  std::span<std::byte> bytes_;
};

// The pieces of one block, part or slice: one object (mostly), or a list or tuple of objects whose
// bytes follow each other.
using MemoryPieces = absl::InlinedVector<Memory, 1>;
MemoryPieces Pieces(nanobind::handle object, Access access, const Field& field);

template <typename Byte>
BlockBytes<Byte> BytesOf(const MemoryPieces& pieces) {
  typename BlockBytes<Byte>::Pieces spans;
  spans.reserve(pieces.size());
  for (const Memory& piece : pieces) spans.push_back(piece.bytes());
  return BlockBytes<Byte>(std::move(spans));
}

}  // namespace cairn::python
