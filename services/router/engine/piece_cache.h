#pragma once
// Tokens of pieces of prompts that came before, so that only what is new in a conversation is
// tokenised.

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/concurrency/mutex.h"
#include "model/tokenizer.h"

namespace cairn::router {

// Evicts what was used least recently. Thread-safe.
class PieceCache {
 public:
  using Tokens = std::shared_ptr<const std::vector<model::TokenId>>;

  // Limit for texts and tokens together. 0: it keeps nothing.
  explicit PieceCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  // nullptr: not known.
  Tokens Find(std::string_view text);
  // Short texts cost less than an entry, and one long one must not evict all others: neither is
  // kept.
  void Add(std::string_view text, Tokens tokens);

  struct Numbers {
    uint64_t bytes = 0;
    uint64_t hits = 0;    // Bytes of text.
    uint64_t misses = 0;  // As these.
  };
  Numbers numbers() const;

 private:
  struct Entry {
    std::string text;
    Tokens tokens;
  };
  static size_t BytesOf(const Entry& entry);

  const size_t max_bytes_;
  mutable Mutex mu_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mu_);  // Most recently used first.
  // Keys are the texts of the entries.
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_text_ ABSL_GUARDED_BY(mu_);
  Numbers numbers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::router
