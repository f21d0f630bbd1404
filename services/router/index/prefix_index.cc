#include "services/router/index/prefix_index.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "common/concurrency/mutex.h"
#include "common/hash/keyed_hash.h"
#include "services/router/index/holder_bits.h"
#include "services/router/index/key_table.h"

namespace cairn::router {
namespace {

using Kind = client::MemberEvent::Kind;

// Limits for the names that nodes may send.
constexpr size_t kMostHolders = 1024;
constexpr size_t kMostNamespaces = 1024;
constexpr size_t kMostIdBytes = 256;
// Entries that a call sweeps.
constexpr uint32_t kSweep = 256;
// Entries ahead of the one that a lookup reads.
constexpr size_t kAhead = 8;

bool IsTier(TierKind tier) { return static_cast<size_t>(tier) < kTierCount; }

// Layers of which the last blocks before a prompt's end are needed.
struct TailRun {
  uint32_t needed = 0;
  Bits mask = {};
  uint32_t blocks = 0;  // Held up to the last block, without a gap.
};

// The state of one holder while a lookup goes on.
struct Run {
  uint32_t holder = 0;
  Bits all = {}, memory = {};
  ByTier<Bits> tiers = {};
  std::vector<TailRun> tails = {};
  bool over = false;
  uint32_t blocks = 0, memory_blocks = 0;            // Held without a gap.
  uint32_t usable_blocks = 0, usable_in_memory = 0;  // As far as the tails allow.

  void Take(const Bits& held) {
    ++blocks;
    if ((held & memory).any()) ++memory_blocks;
    bool usable = true;
    for (TailRun& tail : tails) {
      tail.blocks = (held & tail.mask).any() ? tail.blocks + 1 : 0;
      // Near its beginning a prompt has fewer.
      usable = usable && tail.blocks >= std::min(tail.needed, blocks);
    }
    if (!usable) return;
    usable_blocks = blocks;
    usable_in_memory = memory_blocks;
  }
};

}  // namespace

class PrefixIndex::Impl {
 public:
  explicit Impl(const Options& options) : options_(options), table_(options.max_bytes) {}

  void Apply(const client::MemberEvent& event, uint32_t tail_blocks) {
    MutexLock lock(mu_);
    Sweep(kSweep);
    const auto holder = HolderOf(event.node_id, false);
    if (!holder) {
      ++ignored_;
      return;
    }
    switch (event.kind) {
      case Kind::kSnapshotBegins:
        return BeginSnapshot(*holder);
      case Kind::kSnapshotEnds:
        for (auto& [id, space] : spaces_) space.bits.EndNew(*holder);
        holders_.at(*holder).in_snapshot = false;
        sweeping_ = true;
        return;
      case Kind::kMemberLost:
        return ForgetHolder(*holder);
      case Kind::kEvent:
        return ApplyBlock(*holder, event.event, tail_blocks);
    }
    ++ignored_;
  }

  void Sent(std::string_view worker, const Digest& fingerprint, std::span<const BlockKey> keys) {
    MutexLock lock(mu_);
    Sweep(kSweep);
    const auto holder = HolderOf(worker, true);
    const auto space = holder ? SpaceOf(fingerprint) : std::nullopt;
    if (!space) {
      ++ignored_;
      return;
    }
    // Two generations: what was sent since the last turn, and what was sent in the turn before.
    HolderBits& bits = spaces_.at(*space).bits;
    uint32_t& sent = holders_.at(*holder).sent;
    uint32_t parent = KeyTable::kNone;
    for (const BlockKey& key : keys.first(std::min<size_t>(keys.size(), options_.sent_blocks))) {
      if (sent >= std::max<uint32_t>(options_.sent_blocks / 2, 1)) {
        sent = 0;
        bits.EndNew(*holder);
        bits.BeginNew(*holder);
        sweeping_ = true;
      }
      const auto bit = BitOf(*space, *holder, TierKind::kHost, 0);
      if (!bit) {
        ++ignored_;
        return;
      }
      parent = Set(*space, HashOf(*space, key), *bit, parent, &sent);
    }
  }

  void Forget(std::string_view worker) {
    MutexLock lock(mu_);
    Sweep(kSweep);
    const auto found = ids_.find({true, std::string(worker)});
    if (found != ids_.end()) ForgetHolder(found->second);
  }

  HeldPrefix Lookup(const Digest& fingerprint, std::span<const BlockKey> keys, bool by_tier) {
    MutexLock lock(mu_);
    const auto found = by_fingerprint_.find(fingerprint);
    if (found == by_fingerprint_.end()) return {};
    const uint32_t id = found->second;
    const Space& space = spaces_.at(id);
    std::vector<Run> runs = RunsOf(space.bits);
    const Bits live = ~space.bits.retired();
    Bits nodes;
    for (const Run& run : runs) {
      if (!holders_.at(run.holder).worker) nodes |= run.all;
    }
    hashes_.clear();
    path_.clear();
    HeldPrefix held;
    bool nodes_hold = true;
    for (size_t i = 0; i < keys.size(); ++i) {
      HashUntil(id, keys, i + kAhead);
      const uint32_t number = table_.Find(hashes_[i]);
      if (number == KeyTable::kNone) break;
      const Bits mask = table_.at(number).mask & live;
      bool used = false;
      for (Run& run : runs) {
        if (run.over) continue;
        if (!(mask & run.all).any()) {
          run.over = true;
          continue;
        }
        used = true;
        run.Take(mask);
      }
      nodes_hold = nodes_hold && (mask & nodes).any();
      if (nodes_hold) ++held.any_blocks;
      if (!used && !nodes_hold) break;
      path_.push_back(number);
    }
    // The first block is the newest one: it leaves last.
    for (size_t i = path_.size(); i-- > 0;) table_.Touch(path_[i]);
    for (const Run& run : runs) {
      if (run.usable_blocks == 0) continue;
      const HolderName& name = holders_.at(run.holder);
      held.holders.push_back({.id = name.id,
                              .approximate = name.worker,
                              .blocks = run.usable_blocks,
                              .memory_blocks = run.usable_in_memory});
      if (by_tier && !name.worker) held.holders.back().tier_blocks = TiersOf(run, live);
    }
    std::ranges::stable_sort(held.holders, std::greater(), &Holder::blocks);
    return held;
  }

  bool KnowsNode(std::string_view id) const {
    MutexLock lock(mu_);
    return ids_.contains({/*worker=*/false, std::string(id)});
  }

  Numbers numbers() const {
    MutexLock lock(mu_);
    Numbers numbers;
    numbers.entries = table_.size();
    numbers.bytes = table_.bytes();
    numbers.max_bytes = options_.max_bytes;
    numbers.evicted = table_.evicted();
    numbers.ignored = ignored_;
    for (const auto& [id, holder] : holders_) ++(holder.worker ? numbers.workers : numbers.members);
    numbers.namespaces = spaces_.size();
    return numbers;
  }

 private:
  struct HolderName {
    std::string id;
    bool worker = false;
    bool in_snapshot = false;  // It has begun and not ended.
    uint32_t sent = 0;         // Blocks of this generation, of a worker.
  };
  struct Space {
    Digest fingerprint;
    HolderBits bits;
    Bits sweeping;         // Retired when the sweep under way began.
    uint64_t entries = 0;  // In the table.
  };

  uint64_t HashOf(uint32_t space, const BlockKey& key) const {
    return KeyedHash::OfProcess()(key) ^ (uint64_t{space} * 0x9e3779b97f4a7c15ull);
  }

  void HashUntil(uint32_t space, std::span<const BlockKey> keys, size_t end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (hashes_.size() < std::min(end, keys.size())) {
      hashes_.push_back(HashOf(space, keys[hashes_.size()]));
      table_.Prefetch(hashes_.back());
    }
  }

  // nullopt: there are too many, or the id is none.
  std::optional<uint32_t> HolderOf(std::string_view id, bool worker)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = ids_.find({worker, std::string(id.substr(0, kMostIdBytes + 1))});
    if (found != ids_.end()) return found->second;
    if (id.empty() || id.size() > kMostIdBytes || holders_.size() >= kMostHolders) {
      return std::nullopt;
    }
    const uint32_t holder = next_holder_++;
    holders_[holder] = {.id = std::string(id), .worker = worker};
    ids_[{worker, std::string(id)}] = holder;
    return holder;
  }

  // One that begins again never ended: the old view is what is known.
  void BeginSnapshot(uint32_t holder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    bool& again = holders_.at(holder).in_snapshot;
    for (auto& [id, space] : spaces_) {
      if (again) {
        space.bits.BeginAgain(holder);
      } else {
        space.bits.BeginNew(holder);
      }
    }
    sweeping_ = sweeping_ || again;
    again = true;
  }

  void ForgetHolder(uint32_t holder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (auto& [id, space] : spaces_) space.bits.RetireAll(holder);
    sweeping_ = true;
    const HolderName& name = holders_.at(holder);
    ids_.erase({name.worker, name.id});
    holders_.erase(holder);
  }

  std::optional<uint32_t> SpaceOf(const Digest& fingerprint) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = by_fingerprint_.find(fingerprint);
    if (found != by_fingerprint_.end()) return found->second;
    if (spaces_.size() >= kMostNamespaces) ForgetEmptySpaces();
    if (spaces_.size() >= kMostNamespaces) return std::nullopt;
    const uint32_t id = next_space_++;
    spaces_[id].fingerprint = fingerprint;
    by_fingerprint_[fingerprint] = id;
    return id;
  }

  // No entry has a bit of theirs.
  void ForgetEmptySpaces() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::erase_if(spaces_, [&](const auto& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      if (one.second.entries > 0) return false;
      by_fingerprint_.erase(one.second.fingerprint);
      return true;
    });
  }

  std::optional<Bits> BitOf(uint32_t id, uint32_t holder, TierKind tier, uint32_t tail_blocks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    HolderBits& bits = spaces_.at(id).bits;
    auto bit = bits.BitOf(&bits.Current(holder), tier, tail_blocks);
    if (bit || !sweeping_) return bit;
    // Retired bits are free as soon as a sweep has gone round, which may have begun before.
    SweepRound();
    SweepRound();
    return bits.BitOf(&bits.Current(holder), tier, tail_blocks);
  }

  // Returns the entry's number. `*added` counts up if the bit was not there.
  uint32_t Set(uint32_t id, uint64_t hash, Bits bit, uint32_t parent, uint32_t* added)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    uint32_t number = table_.Find(hash);
    if (number == KeyTable::kNone) {
      const uint64_t evicted = table_.evicted();
      number = table_.Insert(hash, id, parent);
      ++spaces_.at(id).entries;
      if (table_.evicted() != evicted) --spaces_.at(table_.evicted_group()).entries;
    }
    Bits& mask = table_.at(number).mask;
    if (added != nullptr && !(mask & bit).any()) ++*added;
    mask |= bit;
    return number;
  }

  void Clear(uint32_t number, Bits bits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    KeyTable::Entry& entry = table_.at(number);
    entry.mask &= ~bits;
    if (entry.mask.any()) return;
    --spaces_.at(entry.group).entries;
    table_.Erase(number);
  }

  void ApplyBlock(uint32_t holder, const CacheEvent& event, uint32_t tail_blocks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    using BlockKind = CacheEvent::Kind;
    const bool adds = event.kind == BlockKind::kStored || event.kind == BlockKind::kTierAdded;
    const auto found = by_fingerprint_.find(event.fingerprint);
    if (adds) {
      const auto space = IsTier(event.tier) ? SpaceOf(event.fingerprint) : std::nullopt;
      const auto bit = space ? BitOf(*space, holder, event.tier, tail_blocks) : std::nullopt;
      if (!bit) {
        ++ignored_;
        return;
      }
      const uint32_t parent =
          event.parent ? table_.Find(HashOf(*space, *event.parent)) : KeyTable::kNone;
      Set(*space, HashOf(*space, event.key), *bit, parent, nullptr);
      return;
    }
    const bool drops = event.kind == BlockKind::kNamespaceDropped;
    const bool removes = event.kind == BlockKind::kRemoved;
    if (!drops && !removes && (event.kind != BlockKind::kTierRemoved || !IsTier(event.tier))) {
      ++ignored_;
      return;
    }
    // It knows nothing of these blocks.
    if (found == by_fingerprint_.end()) return;
    HolderBits& bits = spaces_.at(found->second).bits;
    if (drops) {
      bits.RetireAll(holder);
      sweeping_ = true;
      return;
    }
    const uint32_t number = table_.Find(HashOf(found->second, event.key));
    if (number == KeyTable::kNone) return;
    Bits gone;
    for (const HolderBits::View* view : bits.Of(holder)) {
      if (removes) {
        gone |= view->used();
      } else if (const auto bit = view->Find(event.tier, tail_blocks)) {
        gone |= *bit;
      }
    }
    Clear(number, gone);
  }

  // The tiers of the path's first blocks, which the holder has.
  ByTier<uint32_t> TiersOf(const Run& run, const Bits& live) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ByTier<uint32_t> blocks;
    for (uint32_t i = 0; i < run.usable_blocks; ++i) {
      const Bits mask = table_.at(path_[i]).mask & live;
      for (size_t tier = 0; tier < kTierCount; ++tier) {
        if ((mask & run.tiers[tier]).any()) ++blocks[tier];
      }
    }
    return blocks;
  }

  // One for each holder, with the bits of its views.
  static std::vector<Run> RunsOf(const HolderBits& bits) {
    std::vector<Run> runs;
    for (const HolderBits::View& view : bits.views()) {
      auto run = std::ranges::find(runs, view.holder, &Run::holder);
      if (run == runs.end()) run = runs.insert(runs.end(), Run{.holder = view.holder});
      run->all |= view.all();
      run->memory |= view.in_memory();
      for (size_t tier = 0; tier < kTierCount; ++tier) {
        if (view.bits[tier]) run->tiers[tier] |= Bits::One(*view.bits[tier]);
      }
      for (const HolderBits::View::Tail& tail : view.tails) {
        auto same = std::ranges::find(run->tails, tail.blocks, &TailRun::needed);
        if (same == run->tails.end()) {
          same = run->tails.insert(same, TailRun{.needed = tail.blocks});
        }
        same->mask |= Bits::One(tail.bit);
      }
    }
    return runs;
  }

  // Takes retired bits out of the next entries' masks.
  void Sweep(uint32_t entries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!sweeping_) return;
    if (hand_ == 0) {
      for (auto& [id, space] : spaces_) space.sweeping = space.bits.retired();
    }
    for (uint32_t i = 0; i < entries && hand_ < table_.end(); ++i, ++hand_) {
      if (!table_.taken(hand_)) continue;
      const Bits bits = spaces_.at(table_.at(hand_).group).sweeping;
      if (bits.any()) Clear(hand_, bits);
    }
    if (hand_ < table_.end()) return;
    EndSweep();
  }

  void EndSweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    hand_ = 0;
    sweeping_ = false;
    for (auto at = spaces_.begin(); at != spaces_.end();) {
      Space& space = at->second;
      space.bits.Cleared(space.sweeping);
      space.sweeping = {};
      sweeping_ = sweeping_ || space.bits.retired().any();
      if (space.entries == 0 && space.bits.empty()) {
        by_fingerprint_.erase(space.fingerprint);
        at = spaces_.erase(at);
      } else {
        ++at;
      }
    }
  }

  void SweepRound() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { Sweep(KeyTable::kNone); }

  const Options options_;
  mutable Mutex mu_;
  KeyTable table_ ABSL_GUARDED_BY(mu_);
  std::map<uint32_t, HolderName> holders_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<bool, std::string>, uint32_t> ids_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<uint32_t, Space> spaces_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<Digest, uint32_t> by_fingerprint_ ABSL_GUARDED_BY(mu_);
  uint32_t next_holder_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t next_space_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t ignored_ ABSL_GUARDED_BY(mu_) = 0;
  bool sweeping_ ABSL_GUARDED_BY(mu_) = false;
  uint32_t hand_ ABSL_GUARDED_BY(mu_) = 0;
  // Used by the lookup under way.
  std::vector<uint64_t> hashes_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> path_ ABSL_GUARDED_BY(mu_);
};

PrefixIndex::PrefixIndex(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
PrefixIndex::~PrefixIndex() = default;

void PrefixIndex::Apply(const client::MemberEvent& event, uint32_t tail_blocks) {
  impl_->Apply(event, tail_blocks);
}

void PrefixIndex::Sent(std::string_view worker, const Digest& fingerprint,
                       std::span<const BlockKey> keys) {
  impl_->Sent(worker, fingerprint, keys);
}

void PrefixIndex::Forget(std::string_view worker) { impl_->Forget(worker); }

HeldPrefix PrefixIndex::Lookup(const Digest& fingerprint, std::span<const BlockKey> keys) {
  return impl_->Lookup(fingerprint, keys, false);
}

HeldPrefix PrefixIndex::LookupTiers(const Digest& fingerprint, std::span<const BlockKey> keys) {
  return impl_->Lookup(fingerprint, keys, true);
}

bool PrefixIndex::KnowsNode(std::string_view id) const { return impl_->KnowsNode(id); }

PrefixIndex::Numbers PrefixIndex::numbers() const { return impl_->numbers(); }

}  // namespace cairn::router
