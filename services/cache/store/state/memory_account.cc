#include "services/cache/store/state/memory_account.h"

#include <algorithm>

namespace cairn::cache {
namespace {

struct ItemText {
  std::string_view name;
  std::string_view setting;
};

// By MemoryItem.
constexpr std::array<ItemText, kMemoryItems> kTexts = {{
    {"host", "host.capacity"},
    {"index", "index.capacity"},
    {"leases", "limits.lease_memory"},
    {"namespaces", "limits.namespace_memory"},
    {"fetch_headers", "limits.fetch_headers"},
    {"transfers", "limits.transfers"},
    {"rpc", "rpc.memory"},
    {"watches", "watch.memory"},
    {"sessions", "limits.session_memory"},
    {"cluster", "cluster.memory"},
    {"disk", ""},
    {"process", ""},
}};

}  // namespace

std::string_view Name(MemoryItem item) { return kTexts[static_cast<size_t>(item)].name; }
std::string_view SettingOf(MemoryItem item) { return kTexts[static_cast<size_t>(item)].setting; }

MemoryCharge& MemoryCharge::operator=(MemoryCharge&& other) noexcept {
  if (this == &other) return *this;
  Clear();
  account_ = std::exchange(other.account_, nullptr);
  item_ = other.item_;
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

Status MemoryCharge::Resize(uint64_t bytes) {
  if (account_ == nullptr) return OkStatus();
  if (bytes > bytes_) {
    CAIRN_RETURN_IF_ERROR(account_->Add(item_, bytes - bytes_));
  } else {
    account_->Return(item_, bytes_ - bytes);
  }
  bytes_ = bytes;
  return OkStatus();
}

void MemoryCharge::Clear() {
  if (account_ == nullptr) return;
  account_->Return(item_, bytes_);
  account_ = nullptr;
  bytes_ = 0;
}

MemoryAccount::Bounds MemoryAccount::Unbounded() {
  Bounds bounds;
  bounds.fill(UINT64_MAX);
  return bounds;
}

Result<MemoryCharge> MemoryAccount::Charge(MemoryItem item, uint64_t bytes, uint64_t keep_free) {
  CAIRN_RETURN_IF_ERROR(Add(item, bytes, keep_free));
  return MemoryCharge(this, item, bytes);
}

MemoryCharge MemoryAccount::Take(MemoryItem item, uint64_t bytes) {
  used_[Index(item)].fetch_add(bytes, std::memory_order_relaxed);
  return MemoryCharge(this, item, bytes);
}

Status MemoryAccount::Add(MemoryItem item, uint64_t bytes, uint64_t keep_free) {
  const uint64_t bound = bounds_[Index(item)] - std::min(keep_free, bounds_[Index(item)]);
  uint64_t used = used_[Index(item)].load(std::memory_order_relaxed);
  do {
    if (used > bound || bytes > bound - used) {
      refusals_[Index(item)].fetch_add(1, std::memory_order_relaxed);
      return Errorf(StatusCode::kResourceExhausted,
                    "memory of {}: {} bytes more would exceed {} of {} bytes in use; see {}",
                    Name(item), bytes, used, bound, SettingOf(item));
    }
  } while (
      !used_[Index(item)].compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return OkStatus();
}

uint64_t Sum(const MemoryAccount::Bounds& bounds) {
  uint64_t sum = 0;
  for (const uint64_t bytes : bounds) {
    if (__builtin_add_overflow(sum, bytes, &sum)) return UINT64_MAX;
  }
  return sum;
}

}  // namespace cairn::cache
