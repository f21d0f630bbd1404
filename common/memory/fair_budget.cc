#include "common/memory/fair_budget.h"

#include <algorithm>

namespace cairn {

ByteShare& ByteShare::operator=(ByteShare&& other) noexcept {
  if (this == &other) return *this;
  Clear();
  budget_ = std::move(other.budget_);
  party_ = std::move(other.party_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

bool ByteShare::Resize(uint64_t bytes, uint64_t keep_free) {
  if (bytes <= bytes_) {
    ShrinkTo(bytes);
    return true;
  }
  if (budget_ != nullptr && !budget_->Take(party_, bytes_, bytes - bytes_, keep_free)) return false;
  bytes_ = bytes;
  return true;
}

Status ByteShare::Charge(uint64_t bytes, uint64_t keep_free) {
  if (Resize(bytes, keep_free)) return OkStatus();
  return budget_->Refuse(bytes_, bytes - bytes_);
}

void ByteShare::ShrinkTo(uint64_t bytes) {
  if (bytes >= bytes_) return;
  const uint64_t rest = bytes_ - bytes;
  bytes_ = bytes;
  if (budget_ != nullptr) budget_->GiveBack(party_, rest);
}

std::optional<ByteShare> FairBudget::TakeOrWait(const std::string& party, uint64_t bytes,
                                                Waiter* waiter) {
  bytes = std::min(bytes, capacity_);
  MutexLock lock(mu_);
  if (bytes > capacity_ - used_ || PartyHasItsShare(party, 0, bytes) || !IsNextInLine()) {
    waiting_.push_back({waiter, party, bytes});
    return std::nullopt;
  }
  Use(party, bytes);
  return ShareOf(party, bytes);
}

bool FairBudget::Forget(const Waiter* waiter) {
  MutexLock lock(mu_);
  return std::erase_if(waiting_, [waiter](const Waiting& w) { return w.waiter == waiter; }) > 0;
}

uint64_t FairBudget::used() const {
  MutexLock lock(mu_);
  return used_;
}

uint64_t FairBudget::used_by(const std::string& party) const {
  MutexLock lock(mu_);
  const auto it = used_by_.find(party);
  return it == used_by_.end() ? 0 : it->second;
}

bool FairBudget::short_of_room() const {
  MutexLock lock(mu_);
  return !waiting_.empty();
}

uint64_t FairBudget::refusals() const {
  MutexLock lock(mu_);
  return refusals_;
}

Status FairBudget::Refuse(uint64_t held, uint64_t bytes) {
  MutexLock lock(mu_);
  ++refusals_;
  return Errorf(StatusCode::kResourceExhausted,
                "memory of {}: {} bytes more, where the request has {}, would exceed its share of "
                "the {} of {} bytes that are free{}{}",
                name_.item, bytes, held, capacity_ - used_, capacity_,
                name_.setting.empty() ? "" : "; see ", name_.setting);
}

bool FairBudget::Take(const std::string& party, uint64_t held, uint64_t bytes, uint64_t keep_free) {
  MutexLock lock(mu_);
  const uint64_t free = capacity_ - used_;
  if (bytes > free || keep_free > free - bytes) return false;
  if (PartyHasItsShare(party, held, bytes) || !IsNextInLine()) return false;
  Use(party, bytes);
  return true;
}

void FairBudget::GiveBack(const std::string& party, uint64_t bytes) {
  MutexLock lock(mu_);
  used_ -= bytes;
  if (!party.empty()) {
    const auto it = used_by_.find(party);
    if ((it->second -= bytes) == 0) used_by_.erase(it);
  }
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    if (PartyHasItsShare(next->party, 0, next->bytes)) {
      ++next;
      continue;
    }
    if (next->bytes > capacity_ - used_) return;  // It comes before all others.
    const Waiting told = std::move(*next);
    next = waiting_.erase(next);
    Use(told.party, told.bytes);
    // Under the lock: after Forget said no, the waiter has its share.
    told.waiter->OnRoom(ShareOf(told.party, told.bytes));
  }
}

bool FairBudget::PartyHasItsShare(const std::string& party, uint64_t held, uint64_t bytes) const {
  if (const auto it = used_by_.find(party); it != used_by_.end()) held = it->second;
  return HasItsShare(held, bytes, capacity_ - used_);
}

bool FairBudget::IsNextInLine() const {
  return std::all_of(waiting_.begin(), waiting_.end(), [this](const Waiting& w) {
    mu_.AssertHeld();
    return PartyHasItsShare(w.party, 0, w.bytes);
  });
}

void FairBudget::Use(const std::string& party, uint64_t bytes) {
  used_ += bytes;
  if (!party.empty()) used_by_[party] += bytes;
}

ByteShare FairBudget::ShareOf(const std::string& party, uint64_t bytes) {
  ByteShare share(shared_from_this(), party);
  share.bytes_ = bytes;
  return share;
}

}  // namespace cairn
