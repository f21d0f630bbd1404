#pragma once
// The KV of a sequence's first tokens, of which a selection kept some rows. Which rows, and how
// many, differs between layers and heads.
//
// Rows lie in units: `unit_rows` rows of K of one head, and the same number of rows of V. A unit
// takes the place of that number of tokens of one head in a page of the pool, but not necessarily
// of the head and layer to which the rows belong. So pages are filled to the last unit, whatever
// was kept.
//
//   page: layer -> K, V -> head -> [block_tokens][head_dim]     unit u of a head: K at `unit`,
//                                  |-- unit --|-- unit --|      V at unit + plane_bytes
//
// A row's position in the sequence is not its index; keys carry their position in their rotation.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cairn/common/status.h"
#include "services/worker/kv/kv_pool.h"

namespace cairn::worker {

// Immutable, with one exception: it may be extended, once, which writes behind its rows. Otherwise
// thread-safe. It holds its pages and those of the prefix that it extends. REQUIRES: the pool
// outlives it.
class RaggedPrefix {
 public:
  ~RaggedPrefix();
  RaggedPrefix(const RaggedPrefix&) = delete;
  RaggedPrefix& operator=(const RaggedPrefix&) = delete;

  // Position of the first token behind it.
  int64_t end() const { return end_; }
  int64_t rows(int layer, int head) const { return Of(layer, head).rows; }
  // Rows of all heads.
  int64_t rows() const;
  // Where row r of the head is: unit r / layout().ragged_unit_rows().
  std::span<const std::byte* const> units(int layer, int head) const {
    return Of(layer, head).units;
  }
  const KvLayout& layout() const { return pool_->layout(); }
  // Pages of all segments.
  int64_t page_count() const;

  // Copies rows [begin, begin + count) of a head: [count][head_dim] each. REQUIRES: they exist.
  void CopyRows(int layer, int head, int64_t begin, int64_t count, uint16_t* k, uint16_t* v) const;

  // Rows of a segment that one head keeps, ascending, from 0 for its first token.
  using RowsOf = std::function<std::vector<int32_t>(int layer, int head)>;
  // Moves the kept rows of the tokens in `pages` together, into these pages and the units that
  // `parent` left free. Gives the other pages back to the pool and their memory to the system.
  // Token t of the segment is in page t / block_tokens. Takes ownership of the pages. `parent` may
  // be null.
  static std::shared_ptr<const RaggedPrefix> Compact(KvPool& pool,
                                                     std::shared_ptr<const RaggedPrefix> parent,
                                                     std::vector<std::byte*> pages, int64_t end,
                                                     const RowsOf& rows_of);

 private:
  friend class RaggedBuilder;
  struct Head {
    std::vector<const std::byte*> units;
    int64_t rows = 0;
  };
  RaggedPrefix(KvPool& pool, std::shared_ptr<const RaggedPrefix> parent);
  const Head& Of(int layer, int head) const { return heads_[Index(layer, head)]; }
  size_t Index(int layer, int head) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(layout().kv_heads) +
           static_cast<size_t>(head);
  }
  // Where row `row` of a head lies; its V is plane_bytes behind.
  std::byte* RowAt(const Head& head, int64_t row) const;

  KvPool* const pool_;
  const std::shared_ptr<const RaggedPrefix> parent_;
  mutable bool extended_ = false;       // By its one child.
  std::vector<std::byte*> pages_;       // Own ones.
  std::vector<Head> heads_;             // [layers][kv_heads]
  std::vector<std::byte*> free_units_;  // In pages of its own or before it, for the child.
  int64_t end_ = 0;
};

// Makes a prefix of rows that come from elsewhere. Not thread-safe, except for Append.
class RaggedBuilder {
 public:
  // If `parent` is not null, the new prefix extends it, and no other prefix may do so.
  RaggedBuilder(KvPool& pool, std::shared_ptr<const RaggedPrefix> parent);

  // Makes room for this number of further rows of each head, [layers][kv_heads].
  // RESOURCE_EXHAUSTED: the pool has no pages left, and nothing is changed.
  [[nodiscard]] Status Reserve(std::span<const int64_t> rows);
  // Adds rows to a head: [count][head_dim] each. Different heads may be written by different
  // threads. REQUIRES: Reserve made room for them.
  void Append(int layer, int head, const uint16_t* k, const uint16_t* v, int64_t count);
  // Returns the prefix, whose next position is `end`. Call it once.
  std::shared_ptr<const RaggedPrefix> Finish(int64_t end);

 private:
  std::shared_ptr<RaggedPrefix> prefix_;
};

}  // namespace cairn::worker
