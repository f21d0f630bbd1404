#include "services/router/engine/piece_cache.h"

#include <utility>

namespace cairn::router {
namespace {

constexpr size_t kMinTextBytes = 64;
// Nodes of list and map, and the counts of the shared pointer.
constexpr size_t kEntryBytes = 160;

}  // namespace

size_t PieceCache::BytesOf(const Entry& entry) {
  return kEntryBytes + entry.text.capacity() + entry.tokens->capacity() * sizeof(model::TokenId);
}

PieceCache::Tokens PieceCache::Find(std::string_view text) {
  MutexLock lock(mu_);
  const auto found = by_text_.find(text);
  if (found == by_text_.end()) {
    numbers_.misses += text.size();
    return nullptr;
  }
  numbers_.hits += text.size();
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->tokens;
}

void PieceCache::Add(std::string_view text, Tokens tokens) {
  if (text.size() < kMinTextBytes) return;
  Entry entry{std::string(text), std::move(tokens)};
  const size_t bytes = BytesOf(entry);
  if (bytes > max_bytes_ / 8) return;
  MutexLock lock(mu_);
  if (by_text_.contains(text)) return;  // Another request was faster.
  entries_.push_front(std::move(entry));
  by_text_.emplace(entries_.front().text, entries_.begin());
  numbers_.bytes += bytes;
  while (numbers_.bytes > max_bytes_) {
    numbers_.bytes -= BytesOf(entries_.back());
    by_text_.erase(entries_.back().text);
    entries_.pop_back();
  }
}

PieceCache::Numbers PieceCache::numbers() const {
  MutexLock lock(mu_);
  return numbers_;
}

}  // namespace cairn::router
