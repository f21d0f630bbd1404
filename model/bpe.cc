#include "model/bpe.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace cairn::model {
namespace {

// To read a byte costs so much less than to look at a pair.
constexpr size_t kReading = 8;

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
  size_t budget = std::numeric_limits<size_t>::max();
  Run(*this, piece).Step(&budget, out);
}

void BytePairEncoder::Run::Consider(int32_t left) {
  if (left < 0) return;
  const Symbol& symbol = symbols_[static_cast<size_t>(left)];
  if (symbol.next < 0) return;
  const auto it =
      encoder_->merges_.find({symbol.id, symbols_[static_cast<size_t>(symbol.next)].id});
  if (it == encoder_->merges_.end()) return;
  heap_.push_back(uint64_t{static_cast<uint32_t>(it->second.rank)} << 32 |
                  static_cast<uint32_t>(left));
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

bool BytePairEncoder::Run::Step(size_t* budget, std::vector<TokenId>* out) {
  if (read_ < piece_.size()) {
    const std::string_view part = piece_.substr(read_, *budget);
    if (read_ == 0) symbols_.reserve(piece_.size());
    for (const char c : part) {
      const TokenId id = encoder_->byte_tokens_[static_cast<uint8_t>(c)];
      if (id < 0) continue;
      const auto i = static_cast<int32_t>(symbols_.size());
      symbols_.push_back({id, i - 1, i + 1});
    }
    read_ += part.size();
    *budget -= part.size() / kReading;
    if (read_ < piece_.size()) return false;
    if (symbols_.empty()) return true;
    symbols_.back().next = -1;
    heap_.reserve(symbols_.size());
  }
  for (; considered_ + 1 < symbols_.size(); ++considered_) {
    if (*budget == 0) return false;
    --*budget;
    Consider(static_cast<int32_t>(considered_));
  }
  while (!heap_.empty()) {
    if (*budget == 0) return false;
    --*budget;
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const uint64_t best = heap_.back();
    heap_.pop_back();
    const auto at = static_cast<int32_t>(best & 0xffff'ffff);
    Symbol& symbol = symbols_[static_cast<size_t>(at)];
    if (symbol.id < 0 || symbol.next < 0) continue;
    Symbol& right = symbols_[static_cast<size_t>(symbol.next)];
    // Ids only grow into those of longer tokens, so a pair that was there before never comes back.
    const auto it = encoder_->merges_.find({symbol.id, right.id});
    if (it == encoder_->merges_.end() ||
        static_cast<uint32_t>(it->second.rank) != static_cast<uint32_t>(best >> 32)) {
      continue;
    }
    symbol.id = it->second.result;
    symbol.next = right.next;
    right.id = -1;
    if (symbol.next >= 0) symbols_[static_cast<size_t>(symbol.next)].previous = at;
    Consider(symbol.previous);
    Consider(at);
  }
  for (int32_t i = 0; i >= 0; i = symbols_[static_cast<size_t>(i)].next) {
    out->push_back(symbols_[static_cast<size_t>(i)].id);
  }
  return true;
}

size_t BytePairEncoder::Run::left() const {
  return (piece_.size() - read_) + (symbols_.size() - considered_) + heap_.size();
}

size_t BytePairEncoder::Run::memory() const {
  return symbols_.capacity() * sizeof(Symbol) + heap_.capacity() * sizeof(uint64_t);
}

}  // namespace cairn::model
