#pragma once
// From block key to its place in the tree. Keys are not stored twice: an entry is a place and 32
// bits of the key's hash.
//
// There are 64 tables instead of one. Each grows at a different moment, so that no insert has to
// rehash all blocks. Keys come from clients, so the hash uses all 32 bytes and a secret seed. Not
// thread-safe.

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "cairn/common/namespace_spec.h"
#include "common/hash/keyed_hash.h"

namespace cairn::cache {

using NodeId = uint32_t;
inline constexpr NodeId kNoNode = UINT32_MAX;

// A place in the tree. Valid until the tree changes its shape.
struct BlockRef {
  NodeId node = kNoNode;
  uint32_t offset = 0;
  bool operator==(const BlockRef&) const = default;
};

class KeyMap {
 public:
  explicit KeyMap(uint64_t seed) : hash_(seed) {}

  // `key_at(BlockRef)` returns the key at a place.
  template <typename KeyAt>
  std::optional<BlockRef> Find(const BlockKey& key, KeyAt&& key_at) const {
    const uint64_t hash = Hash(key);
    const auto& table = tables_[Table(hash)];
    const auto it = table.find(Probe<KeyAt>{&key, static_cast<uint32_t>(hash), &key_at});
    if (it == table.end()) return std::nullopt;
    return it->ref;
  }

  // REQUIRES: the key is not here.
  void Insert(const BlockKey& key, BlockRef ref) {
    const uint64_t hash = Hash(key);
    tables_[Table(hash)].insert(Entry{ref, static_cast<uint32_t>(hash)});
  }

  // The block that was at `from` is now at `to`. REQUIRES: an entry (key, from).
  void Move(const BlockKey& key, BlockRef from, BlockRef to) {
    const uint64_t hash = Hash(key);
    auto& table = tables_[Table(hash)];
    const auto it = table.find(Entry{from, static_cast<uint32_t>(hash)});
    // The place is not part of the hash, so it may change in its slot.
    if (it != table.end()) const_cast<Entry&>(*it).ref = to;
  }

  void Erase(const BlockKey& key, BlockRef ref) {
    const uint64_t hash = Hash(key);
    auto& table = tables_[Table(hash)];
    table.erase(Entry{ref, static_cast<uint32_t>(hash)});
    // A table never shrinks by itself, and would keep the memory of its fullest time.
    if (table.capacity() > kSmallTable && table.size() < table.capacity() / 8) table.rehash(0);
  }

  // Gives back what a larger map needed.
  void ShrinkToFit() {
    for (auto& table : tables_) table.rehash(0);
  }

  // Calls `visit(BlockRef)` for the entries whose hash falls into range `range` of `ranges`, a
  // power of two. A key's range never changes. Nothing may change meanwhile.
  template <typename Visitor>
  void ForEachInRange(size_t range, size_t ranges, Visitor&& visit) const {
    // The tables first: most ranges need look into one only.
    const size_t tables = std::min(ranges, tables_.size());
    const size_t parts = ranges / tables;
    for (size_t t = range % tables; t < tables_.size(); t += tables) {
      for (const Entry& entry : tables_[t]) {
        if (entry.tag % parts == range / tables) visit(entry.ref);
      }
    }
  }

  size_t size() const {
    size_t total = 0;
    for (const auto& table : tables_) total += table.size();
    return total;
  }

  size_t MemoryBytes() const {
    size_t slots = 0;
    for (const auto& table : tables_) slots += table.capacity();
    return sizeof(*this) + slots * (sizeof(Entry) + 1);  // One control byte a slot.
  }

 private:
  static constexpr size_t kSmallTable = 64;

  struct Entry {
    BlockRef ref;
    uint32_t tag;
  };
  template <typename KeyAt>
  struct Probe {
    const BlockKey* key;
    uint32_t tag;
    KeyAt* key_at;
  };
  struct TagHash {
    using is_transparent = void;
    template <typename T>
    size_t operator()(const T& v) const {
      const uint64_t h = (uint64_t{v.tag} + 1) * 0x9e3779b97f4a7c15ull;
      return h ^ (h >> 32);
    }
  };
  struct SamePlace {
    using is_transparent = void;
    bool operator()(const Entry& a, const Entry& b) const { return a.ref == b.ref; }
    template <typename KeyAt>
    bool operator()(const Entry& a, const Probe<KeyAt>& b) const {
      return a.tag == b.tag && (*b.key_at)(a.ref) == *b.key;
    }
  };

  static size_t Table(uint64_t hash) { return hash >> 58; }
  uint64_t Hash(const BlockKey& key) const { return hash_(key); }

  const KeyedHash hash_;
  std::array<absl::flat_hash_set<Entry, TagHash, SamePlace>, 64> tables_;
};

}  // namespace cairn::cache
