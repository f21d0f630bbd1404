#pragma once
// Builds cairn.v1.FetchFrame messages whose data is never copied: what gRPC sends are the tier's own bytes.
//
// Protobuf's serialiser copies every `bytes` field twice. The wire format needs no copy: a frame is a list of (tag, length, fields), and
// `data` is the tail of a run of small fields. So a frame is a list of gRPC slices: a few bytes of header, then a slice over the tier's
// memory with a reference that holds it, and so on. Any protobuf decoder reads it; a test does.

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "cairn/v1/cache.pb.h"
#include "services/cache/engine/cache_engine.h"

namespace cairn::cache {

// Not thread-safe.
class FetchFrameBuilder {
 public:
  // `data_limit`: bytes of data in one frame.
  explicit FetchFrameBuilder(size_t data_limit) : data_limit_(data_limit) {}
  ~FetchFrameBuilder();
  FetchFrameBuilder(const FetchFrameBuilder&) = delete;
  FetchFrameBuilder& operator=(const FetchFrameBuilder&) = delete;

  // Adds as much of the slice as fits from `offset` on; returns how much. 0: the frame is full. A slice of no bytes is added whole: check
  // full() first.
  size_t Add(const FetchedSlice& slice, size_t offset);
  void Add(const FetchFailure& failure);
  void Add(const v1::MatchResponse& matched);

  bool empty() const { return slices_.empty() && text_.empty(); }
  bool full() const { return data_bytes_ >= data_limit_ || pieces_ >= kMaxPieces; }
  size_t data_bytes() const { return data_bytes_; }
  // The frame, and an empty builder. `share` goes when gRPC has let go of the tier's bytes.
  grpc::ByteBuffer Take(std::shared_ptr<const void> share = nullptr);

 private:
  // Of many empty slices or failures too, a frame has an end.
  static constexpr size_t kMaxPieces = 4096;
  // Below this a copy costs less than a slice with a reference count.
  static constexpr size_t kCopyBelow = 512;
  // What a frame's slices keep, together: one count and one allocation for all of them.
  struct Refs {
    std::atomic<size_t> count{1};
    std::vector<std::shared_ptr<const void>> holds;
    std::shared_ptr<const void> share;
  };
  static void Unref(void* refs);
  void FlushText();

  const size_t data_limit_;
  size_t data_bytes_ = 0;
  size_t pieces_ = 0;
  std::string text_;  // Encoded fields that wait for their place in slices_.
  std::vector<grpc::Slice> slices_;
  Refs* refs_ = nullptr;  // Of slices_; the builder has one count.
};

}  // namespace cairn::cache
