#include "services/cache/store/tier/disk/full_io.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "services/cache/store/tier/disk/value_file_map.h"

namespace cairn::cache::disk {

PageBuffer::PageBuffer(size_t bytes)
    : memory_(
          static_cast<std::byte*>(std::aligned_alloc(kPageBytes, PagesFor(bytes) * kPageBytes))) {}

void PageBuffer::Free::operator()(std::byte* p) const { std::free(p); }

FullIo::FullIo(bool write, int fd, uint64_t offset) {
  request_.write = write;
  request_.fd = fd;
  request_.offset = offset;
  request_.owner = this;
  request_.done = [](IoRequest* r, int64_t result) {
    static_cast<FullIo*>(r->owner)->OnResult(result);
  };
}

FullIo* FullIo::NewWrite(int fd, uint64_t offset) { return new FullIo(true, fd, offset); }
FullIo* FullIo::NewRead(int fd, uint64_t offset) { return new FullIo(false, fd, offset); }

void FullIo::AddSource(std::span<const std::byte> source) {
  // Only read from: the request is a write.
  Add(const_cast<std::byte*>(source.data()), source.size());
}

void FullIo::AddDestination(std::span<std::byte> destination) {
  Add(destination.data(), destination.size());
}

void FullIo::Add(std::byte* memory, size_t bytes) {
  const bool aligned = reinterpret_cast<uintptr_t>(memory) % kPageBytes == 0;
  Piece piece{memory, bytes, aligned ? bytes / kPageBytes * kPageBytes : 0, PageBuffer()};
  const size_t rest = bytes - piece.direct_bytes;
  if (piece.direct_bytes > 0) iov_.push_back({memory, piece.direct_bytes});
  if (rest > 0) {
    const size_t padded = PagesFor(rest) * kPageBytes;
    piece.buffer = PageBuffer(padded);
    if (piece.buffer.data() == nullptr) {
      no_memory_ = true;
    } else if (request_.write) {
      std::memcpy(piece.buffer.data(), memory + piece.direct_bytes, rest);
      std::memset(piece.buffer.data() + rest, 0, padded - rest);
    }
    iov_.push_back({piece.buffer.data(), padded});
  }
  left_ += PagesFor(bytes) * kPageBytes;
  pieces_.push_back(std::move(piece));
}

void FullIo::Start(IoBackend* backend, Done done) {
  backend_ = backend;
  done_ = std::move(done);
  if (no_memory_) {
    return Finish(Errorf(StatusCode::kResourceExhausted, "disk tier: no memory for a buffer"));
  }
  request_.iov = iov_.data();
  request_.iov_count = static_cast<int>(iov_.size());
  backend_->Submit(&request_);
}

Status FullIo::FromErrno(int error) const {
  const char* const what = request_.write ? "write" : "read";
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
      return Errorf(StatusCode::kResourceExhausted, "disk tier: {}: {}", what,
                    std::strerror(error));
    case EIO:
      if (!request_.write) {
        return Errorf(StatusCode::kDataLoss, "disk tier: read: {}", std::strerror(error));
      }
      [[fallthrough]];
    default:
      return Errorf(StatusCode::kUnavailable, "disk tier: {}: {}", what, std::strerror(error));
  }
}

void FullIo::OnResult(int64_t result) {
  if (result == -EINTR || result == -EAGAIN) return backend_->Submit(&request_);
  if (result < 0) {
    if (!request_.write && !tried_again_) {
      tried_again_ = true;
      return backend_->Submit(&request_);
    }
    return Finish(FromErrno(static_cast<int>(-result)));
  }
  const auto moved = static_cast<uint64_t>(result);
  if (moved == 0 || moved > left_) {
    return Finish(Errorf(request_.write ? StatusCode::kUnavailable : StatusCode::kDataLoss,
                         "disk tier: {} at {}: got {} of {} bytes",
                         request_.write ? "write" : "read", request_.offset, moved, left_));
  }
  left_ -= moved;
  if (left_ == 0) return Finish(OkStatus());
  request_.offset += moved;
  for (uint64_t skip = moved; skip > 0;) {
    iovec& iov = iov_[next_iov_];
    const uint64_t step = std::min<uint64_t>(skip, iov.iov_len);
    iov.iov_base = static_cast<std::byte*>(iov.iov_base) + step;
    iov.iov_len -= step;
    skip -= step;
    if (iov.iov_len == 0) ++next_iov_;
  }
  request_.iov = iov_.data() + next_iov_;
  request_.iov_count = static_cast<int>(iov_.size() - next_iov_);
  backend_->Submit(&request_);
}

void FullIo::Finish(Status status) {
  if (status.ok() && !request_.write) {
    for (const Piece& piece : pieces_) {
      const size_t rest = piece.bytes - piece.direct_bytes;
      if (rest > 0) std::memcpy(piece.memory + piece.direct_bytes, piece.buffer.data(), rest);
    }
  }
  const std::unique_ptr<FullIo> self(this);
  done_(std::move(status));
}

}  // namespace cairn::cache::disk
