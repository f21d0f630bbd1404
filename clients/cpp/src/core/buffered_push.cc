#include "clients/cpp/src/core/buffered_push.h"

#include <algorithm>
#include <new>
#include <utility>

namespace cairn::client {
namespace {

constexpr std::align_val_t kAlignment{64};
// Larger ones are rounded up to a multiple, so that parts of nearly one size share buffers.
constexpr size_t kGranule = 64 << 10;

class BufferedPush final : public InPlacePush {
 public:
  BufferedPush(CacheClient& client, const Digest& fingerprint, std::span<const PartToWrite> parts,
               const PushOptions& options, PartBuffers& buffers)
      : client_(client), fingerprint_(fingerprint), options_(options) {
    parts_.reserve(parts.size());
    slots_.reserve(parts.size());
    for (const PartToWrite& part : parts) {
      std::shared_ptr<std::byte> buffer = buffers.Take(part.bytes);
      slots_.push_back({OkStatus(), {buffer.get(), part.bytes}});
      parts_.push_back({.key = part.key,
                        .parent = part.parent,
                        .first_position = part.first_position,
                        .rect = part.rect,
                        .bytes = slots_.back().room,
                        .hold = std::move(buffer),
                        .compute_seconds = part.compute_seconds});
    }
  }

  std::span<const Slot> slots() const override { return slots_; }
  Path path() const override { return Path::kGrpc; }
  Result<std::vector<Status>> Commit() override {
    const std::vector<PartToPush> parts = std::exchange(parts_, {});
    slots_.clear();
    return client_.Push(fingerprint_, parts, options_);
  }

 private:
  CacheClient& client_;
  const Digest fingerprint_;
  const PushOptions options_;
  std::vector<PartToPush> parts_;
  std::vector<Slot> slots_;
};

}  // namespace

void PartBuffers::Free::operator()(std::byte* p) const { operator delete(p, kAlignment); }

std::shared_ptr<std::byte> PartBuffers::Take(size_t bytes) {
  const size_t room = std::max<size_t>(bytes + kGranule - 1, kGranule) / kGranule * kGranule;
  Idle buffer;
  {
    MutexLock lock(mu_);
    const auto it = std::find_if(idle_.begin(), idle_.end(),
                                 [&](const Idle& idle) { return idle.bytes == room; });
    if (it != idle_.end()) {
      buffer = std::move(*it);
      idle_.erase(it);
      idle_bytes_ -= room;
    }
  }
  if (buffer.memory == nullptr) {
    buffer.memory.reset(static_cast<std::byte*>(operator new(room, kAlignment)));
    buffer.bytes = room;
  }
  std::byte* const memory = buffer.memory.release();
  return {memory, [self = weak_from_this(), room](std::byte* p) {
            Idle back{std::unique_ptr<std::byte, Free>(p), room};
            if (const auto buffers = self.lock()) buffers->Return(std::move(back));
          }};
}

void PartBuffers::Return(Idle buffer) {
  MutexLock lock(mu_);
  if (idle_bytes_ + buffer.bytes > max_idle_bytes_) return;
  idle_bytes_ += buffer.bytes;
  idle_.push_back(std::move(buffer));
}

std::unique_ptr<InPlacePush> NewBufferedPush(CacheClient& client, const Digest& fingerprint,
                                             std::span<const PartToWrite> parts,
                                             const PushOptions& options, PartBuffers& buffers) {
  return std::make_unique<BufferedPush>(client, fingerprint, parts, options, buffers);
}

Result<std::unique_ptr<InPlacePush>> CacheClient::BeginPush(const Digest& fingerprint,
                                                            std::span<const PartToWrite> parts,
                                                            const PushOptions& options) {
  PartBuffers none(0);
  return NewBufferedPush(*this, fingerprint, parts, options, none);
}

}  // namespace cairn::client
