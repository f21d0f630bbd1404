#pragma once
// Writes PushFrame messages whose data stays where it is.

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace cairn::client {

// Builds one frame after the other: valid v1.PushFrame messages of at most `max_frame_bytes`. Not
// thread-safe.
class PushFrameWriter {
 public:
  // The first frame carries the session, and what to commit at the end of the stream.
  // max_frame_bytes of 0 means wire::kFrameBytes, which is also the upper limit.
  PushFrameWriter(const std::string& session, std::span<const uint64_t> commit,
                  uint32_t max_frame_bytes);

  // Adds as much of `data`, which lies at `offset` in the reservation, as fits, at least 1 byte of
  // a frame that is not full. Returns how much. With `hold` the frame refers to the bytes and keeps
  // `hold`; else it copies them.
  size_t Add(uint64_t reservation, uint64_t offset, std::span<const std::byte> data,
             const std::shared_ptr<const void>& hold);
  // Too little room left to be worth another piece.
  bool full() const;
  // The frame, possibly empty; begins the next one.
  grpc::ByteBuffer Take();

 private:
  size_t room() const { return max_bytes_ - std::min(max_bytes_, bytes_); }

  size_t max_bytes_;
  size_t bytes_ = 0;
  std::vector<grpc::Slice> slices_;
};

}  // namespace cairn::client
