#pragma once
// Writes v1.FetchFrame messages whose data is never copied: what gRPC sends are the tier's own
// bytes.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "protocol/frames/fetch_frame.h"
#include "protocol/frames/frame_buffer.h"

namespace cairn::frames {

// Writes one frame after the other. Not thread-safe.
class FetchFrameWriter {
 public:
  // `data_limit`: bytes of data in one frame.
  explicit FetchFrameWriter(size_t data_limit) : data_limit_(data_limit) {}

  // Adds as much of `data` as fits and returns how many bytes that is. 0: the frame is full. `data`
  // is the rest of the slice from `offset` on. The frame keeps `hold`, and with it the bytes, until
  // it is sent. A slice without bytes is always added: check full() first.
  size_t Add(const SliceHeader& slice, uint64_t offset, std::span<const std::byte> data,
             const std::shared_ptr<const void>& hold);
  // Adds a whole group: check Fits first. The frame keeps `hold`.
  void Add(const RowsHeader& rows, std::span<const std::byte> data,
           const std::shared_ptr<const void>& hold);
  void Add(const FailedBlock& failed);
  void Add(const v1::MatchResponse& matched);

  bool empty() const { return buffer_.empty(); }
  bool full() const { return data_bytes_ >= data_limit_ || pieces_ >= kMaxFramePieces; }
  // Whether so much data can be added whole. Always, to a frame without data.
  bool Fits(size_t bytes) const {
    return !full() && (data_bytes_ == 0 || data_bytes_ + bytes <= data_limit_);
  }
  size_t data_bytes() const { return data_bytes_; }
  // Returns the frame and begins the next one. `share` is released when gRPC has released the
  // tier's bytes.
  grpc::ByteBuffer Take(std::shared_ptr<const void> share = nullptr);

 private:
  // A frame of empty slices or failures has a limit too, which is far below the limit of a reader.
  static constexpr size_t kMaxFramePieces = 4096;

  const size_t data_limit_;
  size_t data_bytes_ = 0;
  size_t pieces_ = 0;
  FrameBuffer buffer_;
};

}  // namespace cairn::frames
