#pragma once
// One transfer of whole extents: memory of any shape on one side, whole pages of a segment on the
// other.
//
// O_DIRECT takes whole pages. Bytes that fill pages of the caller's memory need no copy. The last,
// partly filled page of each extent, and memory that does not begin on a page, go through a buffer
// here. On disk the rest of an extent's last page is zero.

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "services/cache/store/tier/disk/io_backend.h"

namespace cairn::cache::disk {

// Pages, freed with the object.
class PageBuffer {
 public:
  PageBuffer() = default;
  explicit PageBuffer(size_t bytes);  // Rounded up. data() is nullptr: there was no memory.
  std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
};

// Continues short transfers, repeats interrupted ones, and tries a failed read once more. Deletes
// itself after `done`.
class FullIo {
 public:
  using Done = std::function<void(Status)>;  // On the backend's thread.

  static FullIo* NewWrite(int fd, uint64_t offset);
  static FullIo* NewRead(int fd, uint64_t offset);
  // Adds the next extent, directly behind those before. Its memory, and for a write also `source`,
  // must stay valid until `done`.
  void AddSource(std::span<const std::byte> source);
  void AddDestination(std::span<std::byte> destination);
  // RESOURCE_EXHAUSTED: no memory for a buffer, or a full disk. DATA_LOSS: the file is too short,
  // or the device cannot read it.
  void Start(IoBackend* backend, Done done);

 private:
  struct Piece {
    std::byte* memory;
    size_t bytes;
    size_t direct_bytes;  // How many of these go without the buffer.
    PageBuffer buffer;
  };
  FullIo(bool write, int fd, uint64_t offset);
  void Add(std::byte* memory, size_t bytes);
  void OnResult(int64_t result);
  void Finish(Status status);
  Status FromErrno(int error) const;

  IoRequest request_;
  IoBackend* backend_ = nullptr;
  Done done_;
  std::vector<Piece> pieces_;
  std::vector<iovec> iov_;
  size_t next_iov_ = 0;
  uint64_t left_ = 0;
  bool no_memory_ = false;
  bool tried_again_ = false;
};

}  // namespace cairn::cache::disk
