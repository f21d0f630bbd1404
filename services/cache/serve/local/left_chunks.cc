#include "services/cache/serve/local/left_chunks.h"

#include <poll.h>

#include <algorithm>
#include <utility>

namespace cairn::cache {
namespace {

bool HasEnded(const shm::Descriptor& process) {
  pollfd one{.fd = process.get(), .events = POLLIN, .revents = 0};
  return poll(&one, 1, /*timeout=*/0) > 0;
}

}  // namespace

LeftChunks::~LeftChunks() {
  for (const Left& left : left_) GiveBack(left.chunks);
}

void LeftChunks::Keep(shm::Descriptor process, std::vector<DeviceTier::Place> chunks) {
  if (!process.valid() || HasEnded(process)) return GiveBack(chunks);
  if (!chunks.empty()) left_.push_back({std::move(process), std::move(chunks)});
}

void LeftChunks::Look() {
  std::erase_if(left_, [this](const Left& left) {
    if (!HasEnded(left.process)) return false;
    GiveBack(left.chunks);
    return true;
  });
}

size_t LeftChunks::count() const {
  size_t count = 0;
  for (const Left& left : left_) count += left.chunks.size();
  return count;
}

void LeftChunks::GiveBack(const std::vector<DeviceTier::Place>& chunks) {
  for (const DeviceTier::Place& place : chunks) tier_->Unshare(place);
}

}  // namespace cairn::cache
