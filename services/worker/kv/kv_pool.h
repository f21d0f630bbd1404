#pragma once
// Paged memory for the keys and values of running sequences.
//
// A page holds one block: block_tokens tokens of all layers, as IEEE binary16, little-endian. The
// order inside a page is Cairn's block order (docs/inside/formats/part.md):
//
//   layer -> plane (K, then V) -> KV head -> token -> channel
//
// so the slice of a layer is one contiguous run of bytes, which goes to the cache and comes from it
// unchanged. Keys are stored after RoPE, channels in half-split order.
//
// A page that will not change any more may be published under a name. Other sequences then read it
// in the place of a page of their own, and it goes back to the pool with the last of them.
//
// The pool is thread-safe. A KvSequence belongs to one thread at a time. At the same time other
// threads may write the slices of layers that this thread does not read yet, and lend pages that it
// does not touch yet (a fetch that runs ahead of the forward pass).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cairn/common/hash.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"

namespace cairn::worker {

struct KvLayout {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;       // Channels per head.
  int32_t block_tokens = 64;  // 16..256.

  // One token of one head of one plane.
  size_t row_bytes() const { return static_cast<size_t>(head_dim) * sizeof(uint16_t); }
  // One head of one plane of one layer: [block_tokens][head_dim].
  size_t head_bytes() const { return static_cast<size_t>(block_tokens) * row_bytes(); }
  // All KV heads of K, or of V, of one layer.
  size_t plane_bytes() const { return head_bytes() * static_cast<size_t>(kv_heads); }
  // K and V of one layer: what the cache stores as a layer's slice.
  size_t layer_bytes() const { return 2 * plane_bytes(); }
  size_t page_bytes() const { return layer_bytes() * static_cast<size_t>(layers); }
  size_t bytes_per_token() const { return page_bytes() / static_cast<size_t>(block_tokens); }
  // The bytes of the whole pages that have room for `tokens` tokens.
  uint64_t bytes_for(int64_t tokens) const {
    return static_cast<uint64_t>((tokens + block_tokens - 1) / block_tokens) * page_bytes();
  }
  // Rows of a unit of a RaggedPrefix. Few, because the last unit of a head is half empty on
  // average, but enough that attention reads long runs.
  int32_t ragged_unit_rows() const { return block_tokens % 32 == 0 ? 32 : block_tokens; }

  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

class KvPool;
class RaggedPrefix;

// Memory of somebody else, from which pages are read. Dropping the last reference gives it back.
class PageLoan {
 public:
  virtual ~PageLoan() = default;
  // False when the bytes may have changed. True: everything that was computed from them before this
  // call is right.
  virtual bool Intact() const = 0;
};

// The KV of one sequence: a list of pages and a length. Move-only; gives its pages back when it is
// destroyed. REQUIRES: the pool outlives it.
//
// Its first tokens may be a ragged prefix (ragged_prefix.h), or lie elsewhere (StartAt): then the
// pages begin at their end.
// Lengths and capacities count all tokens, also those whose rows were dropped; pages are counted
// from 0.
//
// A page may be lent: it is read in place, in memory that the cache node shares, and nothing is
// copied. Lent pages are never written. The sequence's own page stays reserved for a lent one, so
// that a copy always has room.
class KvSequence {
 public:
  KvSequence() = default;
  ~KvSequence() { Clear(); }
  KvSequence(KvSequence&& other) noexcept { *this = std::move(other); }
  KvSequence& operator=(KvSequence&& other) noexcept;
  KvSequence(const KvSequence&) = delete;
  KvSequence& operator=(const KvSequence&) = delete;

  // Tokens whose KV is there (or will be, layer by layer, before the forward pass reads it).
  int64_t length() const { return length_; }
  int64_t capacity() const;
  int64_t page_count() const { return static_cast<int64_t>(pages_.size()); }

  // Makes room for `tokens` tokens in total. RESOURCE_EXHAUSTED: the pool has no pages left, and
  // the sequence is unchanged.
  [[nodiscard]] Status Reserve(int64_t tokens);
  // Declares that the first `tokens` tokens are there: after a fetch, or after a forward pass.
  // REQUIRES: base() <= tokens <= capacity().
  void SetLength(int64_t tokens);
  // Forgets all tokens from `tokens` on and gives back the pages that are no longer needed.
  // REQUIRES: tokens >= base().
  void Truncate(int64_t tokens);
  // Gives all pages back, and the prefix.
  void Clear();

  // Null: none.
  const std::shared_ptr<const RaggedPrefix>& prefix() const { return prefix_; }
  // The position of the first token in the pages: after the prefix, or after tokens whose KV lies
  // somewhere else (StartAt, DropFront).
  int64_t base() const { return base_; }
  // The sequence begins with `prefix` from now on, instead of the prefix that it had. REQUIRES:
  // length() == base(), and the prefix is of this pool.
  void SetPrefix(std::shared_ptr<const RaggedPrefix> prefix);
  // Makes rows of the prefix from the tokens in the pages: for each layer and head those that
  // `rows_of` names (RaggedPrefix::RowsOf). Gives back the pages that are no longer needed.
  // REQUIRES: no page is lent.
  void Compact(const std::function<std::vector<int32_t>(int layer, int head)>& rows_of);

  // The sequence has `tokens` tokens before its pages, whose KV lies somewhere else: its base is
  // there from now on. REQUIRES: it has no tokens and no prefix; whole blocks.
  void StartAt(int64_t tokens);
  // The KV of the first tokens is somewhere else from now on: gives the pages before `tokens` back,
  // which is the new base. REQUIRES: no prefix, no page is lent; base() <= tokens <= length(),
  // whole blocks.
  void DropFront(int64_t tokens);

  // Both planes of one layer of one page: layout().layer_bytes() bytes. Stays valid while the page
  // is held. REQUIRES: page < page_count(), layer < layout().layers; not lent, to write.
  std::span<std::byte> LayerSlice(int64_t page, int layer);
  std::span<const std::byte> LayerSlice(int64_t page, int layer) const;

  // Reads the page's bytes from `base` from now on: layout().page_bytes() in the order of a page,
  // valid as long as `loan`. REQUIRES: page < page_count(), not lent.
  void Lend(int64_t page, const std::byte* base, std::shared_ptr<const PageLoan> loan);
  bool lent(int64_t page) const;
  // The loan that keeps a lent page; null if it is not lent.
  std::shared_ptr<const PageLoan> LoanOf(int64_t page) const {
    return loans_[static_cast<size_t>(page)].loan;
  }
  int64_t lent_pages() const;
  // Uses the sequence's own page again, whose bytes then mean nothing. No effect if the page is not
  // lent.
  void TakeBack(int64_t page);
  // Gives all loans back. The bytes of lent pages then mean nothing.
  void DropLoans();
  // Copies lent pages to the sequence's own pages and drops the loans. False: a loan was no longer
  // intact, and the bytes mean nothing.
  bool CopyOut();
  // The first page whose loan is no longer intact, or page_count() if all are intact.
  int64_t FirstBrokenLoan() const;

  // Stands for the bytes that the page has now, and those that this sequence writes into it.
  // Another page, and other bytes in the place of this one (lent, taken back), have another stamp;
  // sequences that share a page share its stamp. For copies of pages in other memory. Never 0. May
  // be called while another thread lends the page.
  // REQUIRES: page < page_count().
  uint64_t PageStamp(int64_t page);

  // Other sequences may adopt the page from now on, as long as somebody holds it. `name` stands for
  // its bytes, which nobody may change any more. No effect if the name or the page has been
  // published. REQUIRES: page < page_count(), not lent.
  void Publish(int64_t page, const Digest& name);
  // Holds the page that is published under `name` in the place of its own, which goes back to the
  // pool. False: there is none, and nothing has changed. REQUIRES: page < page_count(), not lent.
  bool Adopt(int64_t page, const Digest& name);
  // How many of `names` are published, from the first one on.
  int64_t Published(std::span<const Digest> names) const;
  // Nobody may adopt its pages any more, except those that other sequences hold, too. REQUIRES: no
  // page is lent.
  void Withdraw();

  // Base addresses of the pages, for the attention kernels, which only write beyond length(). Lent
  // pages are mapped read-only.
  std::span<std::byte* const> pages() const { return pages_; }
  const KvLayout& layout() const;
  // False for a default-constructed or moved-from sequence.
  bool valid() const { return pool_ != nullptr; }

 private:
  friend class KvPool;
  explicit KvSequence(KvPool* pool) : pool_(pool) {}

  struct Loan {
    std::byte* own = nullptr;  // The page that the lent one stands for; null: not lent.
    std::shared_ptr<const PageLoan> loan;
    uint64_t stamp = 0;  // The stamp of the page's bytes. 0: nobody has asked.
  };

  KvPool* pool_ = nullptr;
  std::shared_ptr<const RaggedPrefix> prefix_;
  int64_t base_ = 0;  // prefix_'s end, or that of tokens whose KV lies somewhere else.
  std::vector<std::byte*> pages_;
  int64_t length_ = 0;
  std::vector<Loan> loans_;  // By page, as long as pages_.
};

class KvPool {
 public:
  // A pool of as many pages as fit in `bytes`. Memory is touched only when a page is first used.
  // INVALID_ARGUMENT, which names the field: the layout is not possible, or no page fits.
  static Result<std::unique_ptr<KvPool>> Create(const KvLayout& layout, size_t bytes);
  // REQUIRES: all sequences are gone.
  ~KvPool();
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  KvSequence NewSequence() { return KvSequence(this); }
  const KvLayout& layout() const { return layout_; }
  int64_t total_pages() const { return total_pages_; }
  int64_t free_pages() const;

 private:
  friend class KvSequence;
  friend class RaggedBuilder;
  friend class RaggedPrefix;
  KvPool(const KvLayout& layout, std::byte* base, int64_t total_pages);

  // As in KvSequence.
  void Publish(std::byte* page, const Digest& name, uint64_t stamp);
  struct Held {
    std::byte* page = nullptr;
    uint64_t stamp = 0;
  };
  // The page under `name`, with one more holder. Null: there is none.
  Held Hold(const Digest& name);
  int64_t Published(std::span<const Digest> names) const;
  void Withdraw(std::span<std::byte* const> pages);

  int32_t NumberOf(const std::byte* page) const {
    return static_cast<int32_t>(static_cast<size_t>(page - base_) / layout_.page_bytes());
  }
  // Takes a holder from each page. Numbers of those that nobody holds any more, in the same order.
  std::vector<int32_t> LetGo(std::span<std::byte* const> pages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Appends `count` pages to `pages`, all or none.
  Status Allocate(int64_t count, std::vector<std::byte*>* pages);
  void Free(std::span<std::byte* const> pages);
  // The same for pages that will not be needed again soon: their memory goes back to the system.
  void Release(std::span<std::byte* const> pages);

  // Constant after construction.
  const KvLayout layout_;
  std::byte* const base_;
  const int64_t total_pages_;

  mutable Mutex mu_;
  std::vector<int32_t> free_ ABSL_GUARDED_BY(mu_);  // Last in, first out: warm pages first.
  struct Page {
    int32_t holders = 0;         // Sequences. 0: free.
    std::optional<Digest> name;  // Published.
    uint64_t stamp = 0;          // While it is.
  };
  std::vector<Page> pages_ ABSL_GUARDED_BY(mu_);
  std::map<Digest, int32_t> published_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::worker
