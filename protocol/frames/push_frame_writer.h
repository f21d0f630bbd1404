#pragma once
// Writes v1.PushFrame messages without copying their data.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "protocol/frames/frame_buffer.h"

namespace cairn::frames {

// Writes one frame after the other, each of at most `max_frame_bytes`. Not thread-safe.
class PushFrameWriter {
 public:
  // The first frame carries the session and the reservations to commit at the end of the stream.
  // max_frame_bytes = 0 means wire::kFrameBytes, which is also the upper limit.
  PushFrameWriter(std::string_view session, std::span<const uint64_t> commit,
                  uint32_t max_frame_bytes);

  // Adds as much of `data` as fits and returns how many bytes that is, at least 1. `data` belongs
  // at `offset` in the reservation. With a `hold` the frame refers to the bytes and keeps the hold
  // until it is sent. Without a hold it copies them. REQUIRES: !full().
  size_t Add(uint64_t reservation, uint64_t offset, std::span<const std::byte> data,
             const std::shared_ptr<const void>& hold);
  // True when the room that is left is too small for another piece.
  bool full() const;
  // Returns the frame, which may be empty, and begins the next one.
  grpc::ByteBuffer Take();

 private:
  size_t room() const { return max_bytes_ - std::min(max_bytes_, bytes_); }

  size_t max_bytes_;
  size_t bytes_ = 0;
  FrameBuffer buffer_;
};

}  // namespace cairn::frames
