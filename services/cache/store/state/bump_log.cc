#include "services/cache/store/state/bump_log.h"

#include <algorithm>
#include <cstring>

#include "common/hash/keyed_hash.h"

namespace cairn::cache {
namespace {

static_assert(sizeof(Bump) == sizeof(Digest) + sizeof(Bump::Id), "it is hashed as it lies");

uint64_t HashOf(const Bump& bump) { return Xxh3(std::as_bytes(std::span(&bump, 1))); }

// Others choose the bytes, so a plain hash would let them pass off a new bump as a known one.
uint64_t KeyOf(const Bump& bump) {
  Digest id;
  std::memcpy(id.bytes.data(), bump.id.data(), bump.id.size());
  const KeyedHash& hash = KeyedHash::OfProcess();
  return hash(bump.fingerprint) * 3 + hash(id);
}

}  // namespace

uint64_t BumpLog::Sum::Value() const {
  if (count == 0) return 0;
  const uint64_t words[] = {hashes, count};
  return std::max<uint64_t>(1, Xxh3(std::as_bytes(std::span(words))));
}

uint64_t BumpLog::DigestOf(const Digest& fingerprint) const {
  MutexLock lock(mu_);
  if (changing_.contains(fingerprint)) return changing_digest_;
  const auto it = sums_.find(fingerprint);
  return it == sums_.end() ? 0 : it->second.Value();
}

uint64_t BumpLog::digest() const {
  MutexLock lock(mu_);
  return all_.Value();
}

BumpPage BumpLog::Page(uint64_t begin, size_t most) const {
  BumpPage page;
  MutexLock lock(mu_);
  const size_t first = retired();
  const size_t told = order_.size() - first;
  if (begin >= told) return page;
  const size_t end =
      std::min(told, static_cast<size_t>(begin) + std::clamp<size_t>(most, 1, BumpPage::kMost));
  const auto at = order_.begin() + static_cast<ptrdiff_t>(first);
  page.bumps.assign(at + static_cast<ptrdiff_t>(begin), at + static_cast<ptrdiff_t>(end));
  if (end < told) page.next = end;
  return page;
}

std::vector<Bump> BumpLog::UnknownOf(std::span<const Bump> bumps) const {
  std::vector<Bump> unknown;
  absl::flat_hash_set<uint64_t> found;
  MutexLock lock(mu_);
  for (const Bump& bump : bumps) {
    const uint64_t key = KeyOf(bump);
    if (!known_.contains(key) && found.insert(key).second) unknown.push_back(bump);
  }
  return unknown;
}

void BumpLog::Add(std::span<const Bump> bumps) {
  MutexLock lock(mu_);
  for (const Bump& bump : bumps) {
    if (!known_.insert(KeyOf(bump)).second) continue;
    order_.push_back(bump);
    Count(bump);
    if (retired() > 0) CountOut(order_[retired() - 1]);
    if (order_.size() > kKept) {
      known_.erase(KeyOf(order_.front()));
      order_.pop_front();
    }
  }
  charge_.Clear();
  charge_ = memory_.Take(MemoryItem::kNamespaces, order_.size() * kBumpBytes);
}

void BumpLog::Count(const Bump& bump) {
  const uint64_t hash = HashOf(bump);
  for (Sum* const sum : {&sums_[bump.fingerprint], &all_}) {
    sum->hashes ^= hash;
    ++sum->count;
  }
}

void BumpLog::CountOut(const Bump& bump) {
  const uint64_t hash = HashOf(bump);
  const auto it = sums_.find(bump.fingerprint);
  for (Sum* const sum : {&it->second, &all_}) {
    sum->hashes ^= hash;
    --sum->count;
  }
  if (it->second.count == 0) sums_.erase(it);
}

BumpLog::Change::Change(BumpLog* log, std::span<const Bump> bumps, uint64_t digest) : log_(*log) {
  MutexLock lock(log_.mu_);
  CAIRN_CHECK(log_.changing_.empty());
  for (const Bump& bump : bumps) log_.changing_.insert(bump.fingerprint);
  log_.changing_digest_ = digest;
}

BumpLog::Change::~Change() {
  MutexLock lock(log_.mu_);
  log_.changing_.clear();
}

}  // namespace cairn::cache
