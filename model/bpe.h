#pragma once
// Byte-pair encoding: the bytes of one piece of text to token ids, by merging the pair of lowest
// rank first. Immutable after construction, thread-safe.

#include <absl/container/flat_hash_map.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::model {

using TokenId = int32_t;

class BytePairEncoder {
 public:
  struct Merge {
    TokenId left;
    TokenId right;
    TokenId result;
  };

  // byte_tokens[b] is the token of byte b alone, or -1 when the vocabulary has none. The result
  // leaves such bytes out, as the reference does. Merges are in order of rank. If the same pair has
  // two merges, the first one counts.
  BytePairEncoder(const std::array<TokenId, 256>& byte_tokens, const std::vector<Merge>& merges);

  // Appends the tokens of `piece`. O(n log n).
  void Encode(std::string_view piece, std::vector<TokenId>* out) const;

  // The same in steps: a piece of a stranger's text may be of any length. The encoder and the piece
  // must outlive it. Not thread-safe.
  class Run {
   public:
    Run(const BytePairEncoder& encoder, std::string_view piece)
        : encoder_(&encoder), piece_(piece) {}
    // Works on about `budget` bytes, and takes from it what it used. True: it is done, and the
    // tokens were appended.
    bool Step(size_t* budget, std::vector<TokenId>* out);
    // About how many bytes of work are left.
    size_t left() const;
    // Memory that it takes now.
    size_t memory() const;

   private:
    // A token of the piece so far; a doubly linked list in an array. id is -1 once merged into its
    // left neighbour.
    struct Symbol {
      TokenId id;
      int32_t previous;
      int32_t next;
    };
    void Consider(int32_t left);

    const BytePairEncoder* encoder_;
    std::string_view piece_;
    size_t read_ = 0;        // Bytes of the piece that are symbols.
    size_t considered_ = 0;  // Symbols whose pair with the next one was looked at.
    std::vector<Symbol> symbols_;
    // Possible merges, as a heap: rank, then the index of the left symbol, of which the leftmost
    // goes first. Stale when the pair at that symbol has another rank by now.
    std::vector<uint64_t> heap_;
  };

 private:
  friend class Run;
  struct Ranked {
    int32_t rank;
    TokenId result;
  };

  std::array<TokenId, 256> byte_tokens_;
  absl::flat_hash_map<std::pair<TokenId, TokenId>, Ranked> merges_;
};

}  // namespace cairn::model
