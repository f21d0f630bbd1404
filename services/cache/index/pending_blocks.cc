#include "services/cache/index/pending_blocks.h"

#include <algorithm>

namespace cairn::cache {
namespace {

// In the one tier where it lies.
uint64_t BytesOf(const PartPlace& part) {
  uint64_t bytes = 0;
  for (const uint32_t in_tier : part.bytes) bytes += in_tier;
  return bytes;
}

}  // namespace

PartFit PendingBlocks::Claim(const BlockKey& key, const format::PartRect& rect) {
  const auto it = blocks_.find(key);
  if (it != blocks_.end()) {
    std::vector<format::PartRect> taken(it->second.claimed.begin(), it->second.claimed.end());
    for (const PartPlace& part : it->second.committed) taken.push_back(part.rect);
    const PartFit fit = FitPart(rect, taken);
    if (fit != PartFit::kFree) return fit;
  }
  blocks_[key].claimed.push_back(rect);
  return PartFit::kFree;
}

void PendingBlocks::Unclaim(const BlockKey& key, const format::PartRect& rect) {
  const auto it = blocks_.find(key);
  if (it == blocks_.end()) return;
  auto& claimed = it->second.claimed;
  const auto found = std::find(claimed.begin(), claimed.end(), rect);
  if (found != claimed.end()) claimed.erase(found);
  if (claimed.empty() && it->second.committed.empty()) blocks_.erase(it);
}

bool PendingBlocks::Completes(const BlockKey& key, const format::PartRect& rect) const {
  uint32_t cells = rect.Cells();
  if (const auto it = blocks_.find(key); it != blocks_.end()) {
    for (const PartPlace& part : it->second.committed) cells += part.rect.Cells();
  }
  return cells == whole_.Cells();
}

std::optional<PendingBlocks::Complete> PendingBlocks::Commit(const BlockKey& key,
                                                             const PartPlace& part,
                                                             const std::optional<BlockKey>& parent,
                                                             float recompute_seconds,
                                                             TimePoint expires, bool at_start) {
  Block& block = blocks_[key];
  const auto claimed = std::find(block.claimed.begin(), block.claimed.end(), part.rect);
  if (claimed != block.claimed.end()) block.claimed.erase(claimed);
  if (block.committed.empty()) {
    block.expires = expires;
    ++incomplete_blocks_;
  }
  block.committed.push_back(part);
  incomplete_bytes_ += BytesOf(part);
  if (parent && !block.parent) block.parent = parent;
  block.at_start |= at_start;
  // Ranks compute their parts side by side: the block costs what its slowest part cost.
  block.recompute_seconds = std::max(block.recompute_seconds, recompute_seconds);
  uint32_t cells = 0;
  for (const PartPlace& p : block.committed) cells += p.rect.Cells();
  if (cells < whole_.Cells()) return std::nullopt;
  Complete complete{std::move(block.committed), block.parent, block.recompute_seconds,
                    block.at_start};
  for (const PartPlace& p : complete.parts) incomplete_bytes_ -= BytesOf(p);
  --incomplete_blocks_;
  blocks_.erase(key);
  std::sort(complete.parts.begin(), complete.parts.end(),
            [](const PartPlace& a, const PartPlace& b) { return a.rect < b.rect; });
  return complete;
}

bool PendingBlocks::Contains(const BlockKey& key) const { return blocks_.contains(key); }

void PendingBlocks::Expire(TimePoint now, bool all, std::vector<PartPlace>* dropped) {
  for (auto it = blocks_.begin(); it != blocks_.end();) {
    Block& block = it->second;
    if (!block.committed.empty() && (all || block.expires <= now)) {
      for (const PartPlace& part : block.committed) {
        incomplete_bytes_ -= BytesOf(part);
        dropped->push_back(part);
      }
      block.committed.clear();
      --incomplete_blocks_;
    }
    if (block.committed.empty() && block.claimed.empty()) {
      blocks_.erase(it++);
    } else {
      ++it;
    }
  }
}

size_t PendingBlocks::MemoryBytes() const {
  return blocks_.capacity() * (sizeof(std::pair<const BlockKey, Block>) + 1);
}

}  // namespace cairn::cache
