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

namespace cairn::worker {

using TokenId = int32_t;

class BytePairEncoder {
 public:
  struct Merge {
    TokenId left;
    TokenId right;
    TokenId result;
  };

  // byte_tokens[b] is the token of byte b alone, or -1 when the vocabulary has none. The result
  // leaves such bytes out, as the reference does. Merges are in order of rank. Of two merges of the
  // same pair the first counts.
  BytePairEncoder(const std::array<TokenId, 256>& byte_tokens, const std::vector<Merge>& merges);

  // Appends the tokens of `piece`. O(n log n).
  void Encode(std::string_view piece, std::vector<TokenId>* out) const;

 private:
  struct Ranked {
    int32_t rank;
    TokenId result;
  };

  std::array<TokenId, 256> byte_tokens_;
  absl::flat_hash_map<std::pair<TokenId, TokenId>, Ranked> merges_;
};

}  // namespace cairn::worker
