#pragma once
// A frame that is being written: a list of gRPC slices. Encoded fields are copied into it, data is
// borrowed from where it lies.

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace cairn::frames {

// Not thread-safe. The frames that it gave away may be released on any thread, also after the
// buffer.
class FrameBuffer {
 public:
  FrameBuffer() = default;
  ~FrameBuffer();
  FrameBuffer(const FrameBuffer&) = delete;
  FrameBuffer& operator=(const FrameBuffer&) = delete;

  // Fields that are to follow what is in the frame: append to it.
  std::string* fields() { return &fields_; }
  // Appends data. With a `hold` the frame refers to the bytes, and keeps the hold until gRPC has
  // released the whole frame. Without one, and when the bytes are few, it copies them.
  void AddData(std::span<const std::byte> data, const std::shared_ptr<const void>& hold);
  bool empty() const { return slices_.empty() && fields_.empty(); }
  // The frame, and an empty buffer. gRPC releases `share` together with the borrowed bytes; a frame
  // that borrows none releases it at once.
  grpc::ByteBuffer Take(std::shared_ptr<const void> share = nullptr);

 private:
  // Below this a copy costs less than a slice with a reference count.
  static constexpr size_t kCopyBelow = 512;
  // What the slices of a frame keep, together: one count and one allocation for all of them.
  struct Refs {
    std::atomic<size_t> count{1};
    std::vector<std::shared_ptr<const void>> holds;
    std::shared_ptr<const void> share;
  };
  static void Unref(void* refs);
  void FlushFields();

  std::string fields_;  // Of the frame's end; not in slices_ yet.
  std::vector<grpc::Slice> slices_;
  Refs* refs_ = nullptr;  // Of slices_; the buffer itself has one count.
};

}  // namespace cairn::frames
