#include "protocol/frames/frame_buffer.h"

#include <utility>

namespace cairn::frames {

void FrameBuffer::Unref(void* refs) {
  auto* const all = static_cast<Refs*>(refs);
  if (all->count.fetch_sub(1, std::memory_order_acq_rel) == 1) delete all;
}

FrameBuffer::~FrameBuffer() {
  if (refs_ != nullptr) Unref(refs_);
}

void FrameBuffer::AddData(std::span<const std::byte> data,
                          const std::shared_ptr<const void>& hold) {
  if (data.size() < kCopyBelow) {
    if (!data.empty()) fields_.append(reinterpret_cast<const char*>(data.data()), data.size());
    return;
  }
  FlushFields();
  if (hold == nullptr) {
    slices_.emplace_back(data.data(), data.size());
    return;
  }
  if (refs_ == nullptr) refs_ = new Refs();
  // Neighbours mostly have the same hold.
  if (refs_->holds.empty() || refs_->holds.back() != hold) refs_->holds.push_back(hold);
  refs_->count.fetch_add(1, std::memory_order_relaxed);
  // gRPC takes void*, and only reads.
  slices_.emplace_back(const_cast<std::byte*>(data.data()), data.size(), &Unref, refs_);
}

void FrameBuffer::FlushFields() {
  if (fields_.empty()) return;
  slices_.emplace_back(fields_);
  fields_.clear();
}

grpc::ByteBuffer FrameBuffer::Take(std::shared_ptr<const void> share) {
  FlushFields();
  // A frame without fields is legal: a buffer of one empty slice.
  if (slices_.empty()) slices_.emplace_back(std::string());
  grpc::ByteBuffer frame(slices_.data(), slices_.size());
  slices_.clear();
  if (refs_ != nullptr) {
    refs_->share = std::move(share);
    Unref(std::exchange(refs_, nullptr));
  }
  return frame;
}

}  // namespace cairn::frames
