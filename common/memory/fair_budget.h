#pragma once
// Bounds the bytes that many parties hold together, and shares them: one gets more only if it holds
// no more than is left for others, so n parties that give nothing back leave 1/(n+1) of the bytes.
// A party that holds nothing gets as much as is free.
//
//   FairBudget --- a ByteShare goes where the bytes go, and gives them back at its end
//       |
//       +--------- a Waiter gets its share when there is room

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"

namespace cairn {

class FairBudget;

// What refusals say of a budget. Texts that live as long as the process.
struct BudgetName {
  std::string_view item = "a budget";  // As in the process's account of memory: "bodies".
  std::string_view setting = {};       // That bounds it. Empty: none.
};

// The bytes that one holder has of a budget. It goes where the bytes go, and its end gives them
// back, so that no hand-over can forget them. Movable, and not copyable: a copy of the bytes needs
// a share of its own. It keeps the budget alive. One thread at a time; several shares are
// independent.
class ByteShare {
 public:
  // A share of no budget: it counts nothing and refuses nothing.
  ByteShare() = default;
  // Holds nothing yet. `party`: shares of the same name are one party. Empty: a party by itself.
  explicit ByteShare(std::shared_ptr<FairBudget> budget, std::string party = {})
      : budget_(std::move(budget)), party_(std::move(party)) {}
  ByteShare(ByteShare&& other) noexcept { *this = std::move(other); }
  ByteShare& operator=(ByteShare&& other) noexcept;
  ByteShare(const ByteShare&) = delete;
  ByteShare& operator=(const ByteShare&) = delete;
  ~ByteShare() { Clear(); }

  // From now on the share holds `bytes`. False: the budget has no room for more, or less than
  // `keep_free` bytes would stay free, or others wait for room. Then nothing has changed.
  [[nodiscard]] bool Resize(uint64_t bytes, uint64_t keep_free = 0);
  // As Resize, for a caller that tells its own caller. RESOURCE_EXHAUSTED names the item, the
  // bytes, what is free, the bound and its setting. It counts among the budget's refusals.
  Status Charge(uint64_t bytes, uint64_t keep_free = 0);
  // Gives back what is more than `bytes`.
  void ShrinkTo(uint64_t bytes);
  // The share holds nothing any more.
  void Clear() { ShrinkTo(0); }
  uint64_t bytes() const { return bytes_; }
  // An empty share of the same budget, for other bytes that belong to the same work.
  ByteShare Another() const { return ByteShare(budget_, party_); }

 private:
  friend class FairBudget;

  std::shared_ptr<FairBudget> budget_;
  std::string party_;
  uint64_t bytes_ = 0;
};

// Thread-safe. Lives in a shared_ptr: its shares keep it.
class FairBudget : public std::enable_shared_from_this<FairBudget> {
 public:
  // Waits for room.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    // There is room, and `share` has it. Comes on any thread that gives bytes back, even one that
    // holds locks of others, and with the budget's lock held: must neither call the budget nor let
    // go of the share, but keep it and go on elsewhere.
    virtual void OnRoom(ByteShare share) = 0;
  };

  explicit FairBudget(uint64_t capacity, BudgetName name = {}) : capacity_(capacity), name_(name) {}

  // The rule: a party that holds `held` bytes must wait for others or for itself before it gets
  // `bytes` of those that are free.
  static constexpr bool HasItsShare(uint64_t held, uint64_t bytes, uint64_t free) {
    return held > 0 && (bytes > free || held > free - bytes);
  }

  // nullopt: others use too much or came earlier, or the party has its share. Then `waiter` gets
  // the share later. Waiters get theirs in the order in which they came, except that those whose
  // party has its share stay behind. A request for more than the whole budget waits until it can
  // have all of it. The waiter must live until it was told or forgotten.
  std::optional<ByteShare> TakeOrWait(const std::string& party, uint64_t bytes, Waiter* waiter);
  // The waiter wants nothing any more. False: it does not wait, or was told already.
  bool Forget(const Waiter* waiter);

  uint64_t capacity() const { return capacity_; }
  uint64_t used() const;
  uint64_t used_by(const std::string& party) const;  // 0 for "".
  // Somebody waits.
  bool short_of_room() const;
  // Of ByteShare::Charge, since the start.
  uint64_t refusals() const;

 private:
  friend class ByteShare;

  // `held`: by the party, if it has no name.
  bool Take(const std::string& party, uint64_t held, uint64_t bytes, uint64_t keep_free);
  void GiveBack(const std::string& party, uint64_t bytes);
  Status Refuse(uint64_t held, uint64_t bytes);
  bool PartyHasItsShare(const std::string& party, uint64_t held, uint64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Nobody waits for room alone.
  bool IsNextInLine() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Use(const std::string& party, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ByteShare ShareOf(const std::string& party, uint64_t bytes);

  struct Waiting {
    Waiter* waiter;
    std::string party;
    uint64_t bytes;
  };

  const uint64_t capacity_;
  const BudgetName name_;
  mutable Mutex mu_;
  uint64_t used_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t refusals_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, uint64_t> used_by_ ABSL_GUARDED_BY(mu_);  // Those with a name and some.
  std::list<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn
