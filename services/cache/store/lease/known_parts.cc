#include "services/cache/store/lease/known_parts.h"

#include <algorithm>

#include "cairn/common/hash.h"

namespace cairn::cache {
namespace {

// Whether the hashes of all leases have room: in half of the item. That there is none is no refusal
// of a request, and not counted as one.
bool HasRoom(uint64_t bytes, const MemoryAccount& account) {
  const uint64_t most = account.bound(MemoryItem::kLeases) / 2;
  const uint64_t used = account.used(MemoryItem::kLeases);
  return used <= most && bytes <= most - used;
}

std::optional<MemoryCharge> ChargeIfRoom(uint64_t bytes, MemoryAccount* account) {
  if (!HasRoom(bytes, *account)) return std::nullopt;
  auto charge = account->Charge(MemoryItem::kLeases, bytes);
  if (!charge.ok()) return std::nullopt;
  return *std::move(charge);
}

}  // namespace

std::shared_ptr<const KnownPart> KnownParts::Find(TierKind tier, uint64_t extent) const {
  MutexLock lock(mu_);
  const auto it = parts_.find(Id(tier, extent));
  return it == parts_.end() ? nullptr : it->second.part;
}

void KnownParts::Add(TierKind tier, uint64_t extent, std::shared_ptr<const KnownPart> part,
                     MemoryAccount* account) {
  MutexLock lock(mu_);
  if (parts_.contains(Id(tier, extent))) return;
  const uint64_t bytes = 2 * (sizeof(Id) + sizeof(Entry)) + sizeof(KnownPart) +
                         part->slices.size() * sizeof(format::SliceEntry);
  auto charge = ChargeIfRoom(bytes, account);
  if (!charge) return;
  Entry& entry = parts_[Id(tier, extent)];
  entry.part = std::move(part);
  entry.memory = *std::move(charge);
}

std::vector<uint64_t> KnownParts::PagesOf(TierKind tier, uint64_t extent, size_t slice) const {
  MutexLock lock(mu_);
  const auto it = parts_.find(Id(tier, extent));
  if (it == parts_.end() || slice >= it->second.has.size() || !it->second.has[slice]) return {};
  const SlicePages pages = SlicePages::Of(it->second.part->slices[slice]);
  const auto first = it->second.hashes.begin() + static_cast<ptrdiff_t>(pages.begin + slice);
  return {first, first + static_cast<ptrdiff_t>(pages.count())};
}

void KnownParts::AddPages(TierKind tier, uint64_t extent, size_t slice,
                          std::span<const std::byte> bytes, MemoryAccount* account) {
  std::shared_ptr<const KnownPart> part;
  {
    MutexLock lock(mu_);
    const auto it = parts_.find(Id(tier, extent));
    if (it == parts_.end()) return;
    part = it->second.part;
    const std::vector<bool>& has = it->second.has;
    if (slice < has.size() && has[slice]) return;
    if (it->second.hashes.empty() && !HasRoom(HashBytes(*part), *account)) return;
  }
  if (slice >= part->slices.size()) return;
  const format::SliceEntry& entry = part->slices[slice];
  if (entry.length != bytes.size()) return;
  const SlicePages pages = SlicePages::Of(entry);
  std::vector<uint64_t> hashes;
  hashes.reserve(pages.count());
  for (uint64_t page = pages.begin; page < pages.end; ++page) {
    const auto [begin, end] = InPage(entry, page);
    hashes.push_back(Xxh3(bytes.subspan(begin - entry.offset, end - begin)));
  }
  MutexLock lock(mu_);
  const auto it = parts_.find(Id(tier, extent));
  if (it == parts_.end() || it->second.part != part) return;
  Entry& known = it->second;
  if (known.hashes.empty()) {
    auto charge = ChargeIfRoom(HashBytes(*part), account);
    if (!charge) return;
    known.pages_memory = *std::move(charge);
    known.hashes.resize(HashBytes(*part) / sizeof(uint64_t));
    known.has.resize(part->slices.size());
  }
  std::ranges::copy(hashes, known.hashes.begin() + static_cast<ptrdiff_t>(pages.begin + slice));
  known.has[slice] = true;
}

}  // namespace cairn::cache
