#include "services/cache/store/index/pending_blocks.h"

#include <algorithm>

#include "services/cache/store/tier/host_room.h"

namespace cairn::cache {
namespace {

// Below it the table is not worth giving back.
constexpr size_t kSmallTable = 256;

// The room that it takes in host memory, where parts of writers arrive.
uint64_t RoomOf(const PartPlace& part) { return HostRoom(part.bytes[TierKind::kHost]); }

uint32_t LayersOf(const format::PartRect& rect) {
  return uint32_t{rect.layer_end} - uint32_t{rect.layer_begin};
}

}  // namespace

// Parts are ordered by their first layer, so those that end before this one begin more than the
// tallest of them ahead of it. A layer lies in at most as many parts as the grid has heads.
template <typename Visitor>
void PendingBlocks::ForEachOverlap(const Block& block, const format::PartRect& rect,
                                   Visitor&& visit) const {
  format::PartRect from;
  from.layer_begin =
      static_cast<uint16_t>(rect.layer_begin - std::min<uint32_t>(rect.layer_begin, block.tallest));
  for (auto it = block.committed.lower_bound(from);
       it != block.committed.end() && it->first.layer_begin < rect.layer_end; ++it) {
    ++looked_at_;
    if (it->first.Overlaps(rect)) visit(it->second);
  }
}

PartFit PendingBlocks::Fit(const BlockKey& key, const format::PartRect& rect) const {
  const auto it = blocks_.find(key);
  if (it == blocks_.end()) return PartFit::kFree;
  const auto& committed = it->second.committed;
  if (!committed.empty() && grid_.PoolOf(committed.begin()->first) != grid_.PoolOf(rect)) {
    return PartFit::kOtherPool;
  }
  uint32_t common = 0;
  bool crosses = false;
  ForEachOverlap(it->second, rect, [&](const PartPlace& part) {
    const uint32_t cells = CommonCells(rect, part.rect);
    common += cells;
    crosses |= cells < part.rect.Cells();
  });
  if (common == rect.Cells()) return PartFit::kCovered;
  return crosses ? PartFit::kOverlaps : PartFit::kFree;
}

void PendingBlocks::AddWriter(const BlockKey& key) { ++blocks_[key].writers; }

void PendingBlocks::RemoveWriter(const BlockKey& key) {
  const auto it = blocks_.find(key);
  if (it == blocks_.end()) return;
  --it->second.writers;
  EraseIfUnused(it);
}

bool PendingBlocks::Completes(const BlockKey& key, const format::PartRect& rect) const {
  uint32_t cells = rect.Cells();
  if (const auto it = blocks_.find(key); it != blocks_.end()) {
    cells += it->second.cells;
    ForEachOverlap(it->second, rect, [&](const PartPlace& part) { cells -= part.rect.Cells(); });
  }
  return cells == grid_.WholeOf(rect).Cells();
}

std::optional<PendingBlocks::Complete> PendingBlocks::Commit(const BlockKey& key,
                                                             const PartPlace& part,
                                                             const About& about, TimePoint expires,
                                                             std::vector<PartPlace>* replaced) {
  const auto it = blocks_.try_emplace(key).first;
  Block& block = it->second;
  if (part.rect.Cells() == grid_.WholeOf(part.rect).Cells()) {  // The common block.
    Complete complete{{part},
                      about.parent ? about.parent : block.about.parent,
                      std::max(block.about.recompute_seconds, about.recompute_seconds),
                      block.about.at_start || about.at_start};
    Drop(block, replaced);
    EraseIfUnused(it);
    return complete;
  }
  if (block.committed.empty()) {
    block.expires = expires;
    ++incomplete_blocks_;
  }
  const size_t first = replaced->size();
  ForEachOverlap(block, part.rect, [&](const PartPlace& old) { replaced->push_back(old); });
  for (size_t i = first; i < replaced->size(); ++i) {
    const PartPlace& old = (*replaced)[i];
    block.cells -= old.rect.Cells();
    incomplete_bytes_ -= RoomOf(old);
    block.committed.erase(old.rect);
    --parts_;
  }
  block.committed.emplace(part.rect, part);
  block.tallest = std::max(block.tallest, LayersOf(part.rect));
  block.cells += part.rect.Cells();
  incomplete_bytes_ += RoomOf(part);
  ++parts_;
  if (about.parent && !block.about.parent) block.about.parent = about.parent;
  block.about.at_start |= about.at_start;
  // Ranks compute their parts side by side: the block costs what its slowest part cost.
  block.about.recompute_seconds = std::max(block.about.recompute_seconds, about.recompute_seconds);
  if (block.cells < grid_.WholeOf(part.rect).Cells()) return std::nullopt;
  Complete complete{{}, block.about.parent, block.about.recompute_seconds, block.about.at_start};
  std::vector<PartPlace> parts;
  Drop(block, &parts);
  complete.parts.assign(parts.begin(), parts.end());
  EraseIfUnused(it);
  return complete;
}

bool PendingBlocks::Contains(const BlockKey& key) const { return blocks_.contains(key); }

bool PendingBlocks::HasWriter(const BlockKey& key) const {
  const auto it = blocks_.find(key);
  return it != blocks_.end() && it->second.writers > 0;
}

void PendingBlocks::Drop(Block& block, std::vector<PartPlace>* dropped) {
  if (block.committed.empty()) return;
  for (const auto& [rect, place] : block.committed) {
    incomplete_bytes_ -= RoomOf(place);
    dropped->push_back(place);
  }
  parts_ -= block.committed.size();
  --incomplete_blocks_;
  const uint32_t writers = block.writers;
  block = Block{};
  block.writers = writers;
}

void PendingBlocks::Expire(TimePoint now, bool all, std::vector<PartPlace>* dropped) {
  for (auto it = blocks_.begin(); it != blocks_.end();) {
    const auto here = it++;
    Block& block = here->second;
    if (all || block.expires <= now) Drop(block, dropped);
    if (block.committed.empty() && block.writers == 0) blocks_.erase(here);
  }
}

void PendingBlocks::EraseIfUnused(Blocks::iterator it) {
  if (it->second.writers > 0 || !it->second.committed.empty()) return;
  blocks_.erase(it);
  // After a flood of keys the table would count against the index for good.
  if (blocks_.capacity() > kSmallTable && blocks_.size() < blocks_.capacity() / 8) {
    blocks_.rehash(0);
  }
}

size_t PendingBlocks::MemoryBytes() const {
  // A node of the map is half empty at worst.
  return blocks_.capacity() * (sizeof(Blocks::value_type) + 1) +
         parts_ * 2 * (sizeof(format::PartRect) + sizeof(PartPlace));
}

}  // namespace cairn::cache
