#include "model/bpe.h"

#include <functional>
#include <queue>
#include <tuple>

namespace cairn::worker {
namespace {

// A token of the piece so far; a doubly linked list in an array. id is -1 once merged into its left
// neighbour.
struct Symbol {
  TokenId id;
  int32_t previous;
  int32_t next;
};

// A merge that was possible when it was queued. Stale when one of its sides has changed since.
struct Candidate {
  int32_t rank;
  int32_t left;  // Index of the left symbol: among equal ranks the leftmost goes first.
  int32_t right;
  TokenId left_id;
  TokenId right_id;
  TokenId result;

  bool operator>(const Candidate& other) const {
    return std::tie(rank, left) > std::tie(other.rank, other.left);
  }
};

}  // namespace

BytePairEncoder::BytePairEncoder(const std::array<TokenId, 256>& byte_tokens,
                                 const std::vector<Merge>& merges)
    : byte_tokens_(byte_tokens) {
  merges_.reserve(merges.size());
  int32_t rank = 0;
  for (const Merge& merge : merges) {
    merges_.try_emplace({merge.left, merge.right}, Ranked{rank++, merge.result});
  }
}

void BytePairEncoder::Encode(std::string_view piece, std::vector<TokenId>* out) const {
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  for (const char c : piece) {
    const TokenId id = byte_tokens_[static_cast<uint8_t>(c)];
    if (id < 0) continue;
    const auto i = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, i - 1, i + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto consider = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const TokenId a = symbols[static_cast<size_t>(left)].id;
    const TokenId b = symbols[static_cast<size_t>(right)].id;
    const auto it = merges_.find({a, b});
    if (it == merges_.end()) return;
    queue.push({it->second.rank, left, right, a, b, it->second.result});
  };
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i) consider(i, i + 1);

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<size_t>(best.left)];
    Symbol& right = symbols[static_cast<size_t>(best.right)];
    if (left.id != best.left_id || right.id != best.right_id || left.next != best.right) continue;
    left.id = best.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = best.left;
    consider(left.previous, best.left);
    consider(best.left, left.next);
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    out->push_back(symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace cairn::worker
