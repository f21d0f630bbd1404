#pragma once
// A frame that is being written: a list of gRPC slices. The frame copies encoded fields and borrows
// data in place.

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace cairn::frames {

// Not thread-safe. Any thread may release the frames that it gave away, also after the buffer is
// gone.
class FrameBuffer {
 public:
  FrameBuffer() = default;
  ~FrameBuffer();
  FrameBuffer(const FrameBuffer&) = delete;
  FrameBuffer& operator=(const FrameBuffer&) = delete;

  // The fields that follow next in the frame. The caller appends to this string.
  std::string* fields() { return &fields_; }
  // Appends data. With a `hold` the frame refers to the bytes and keeps the hold until gRPC has
  // released the whole frame. Without a hold, and when there are only a few bytes, it copies them.
  void AddData(std::span<const std::byte> data, const std::shared_ptr<const void>& hold);
  bool empty() const { return slices_.empty() && fields_.empty(); }
  // Returns the frame and empties the buffer. gRPC releases `share` together with the borrowed
  // bytes. A frame that borrows nothing releases it at once.
  grpc::ByteBuffer Take(std::shared_ptr<const void> share = nullptr);

 private:
  // Below this a copy costs less than a slice with a reference count.
  static constexpr size_t kCopyBelow = 512;
  // Everything that the slices of a frame keep alive: one count and one allocation for all of them.
  struct Refs {
    std::atomic<size_t> count{1};
    std::vector<std::shared_ptr<const void>> holds;
    std::shared_ptr<const void> share;
  };
  static void Unref(void* refs);
  void FlushFields();

  std::string fields_;  // The fields at the frame's end; not in slices_ yet.
  std::vector<grpc::Slice> slices_;
  Refs* refs_ = nullptr;  // The counts of slices_; the buffer itself has one count.
};

}  // namespace cairn::frames
