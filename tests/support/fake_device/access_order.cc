#include "tests/support/fake_device/access_order.h"

#include <algorithm>

namespace cairn::device::fake {
namespace {

std::string NameOf(Line line) {
  return line == kHost ? "the host" : "stream " + std::to_string(line);
}

}  // namespace

uint64_t& AccessOrder::At(LineClock* clock, Line line) {
  if (clock->size() <= line) clock->resize(line + 1);
  return (*clock)[line];
}

void AccessOrder::Merge(LineClock* clock, const LineClock& other) {
  for (Line line = 0; line < other.size(); ++line) {
    At(clock, line) = std::max(At(clock, line), other[line]);
  }
}

void AccessOrder::Tick(Line line) {
  LineClock& clock = clocks_[line];
  if (line != kHost) Merge(&clock, clocks_[kHost]);
  At(&clock, line) += 1;
}

bool AccessOrder::IsBefore(const Use& use, Line line) {
  return use.tick <= At(&clocks_[line], use.line);
}

void AccessOrder::Split(uint64_t at) {
  auto it = pieces_.upper_bound(at);
  if (it == pieces_.begin()) return;
  --it;
  if (it->first == at || it->second.end <= at) return;
  Piece tail = it->second;
  it->second.end = at;
  pieces_.emplace(at, std::move(tail));
}

std::optional<std::string> AccessOrder::Access(Line line, const std::string& what, uint64_t begin,
                                               uint64_t bytes, bool writes) {
  const uint64_t end = begin + bytes;
  if (bytes == 0) return std::nullopt;
  Split(begin);
  Split(end);
  const Use mine{line, At(&clocks_[line], line), what};
  std::optional<std::string> wrong;
  const auto check = [&](const Use& use) {
    if (wrong || IsBefore(use, line)) return;
    wrong = "'" + what + "' of " + NameOf(line) + (writes ? " writes" : " reads") + " what '" +
            use.what + "' of " + NameOf(use.line) + " uses, and no wait orders them";
  };
  uint64_t at = begin;
  for (auto it = pieces_.lower_bound(begin); at < end;) {
    const bool gap = it == pieces_.end() || it->first > at;
    if (gap) {
      const uint64_t stop = it == pieces_.end() ? end : std::min(end, it->first);
      it = pieces_.emplace(at, Piece{stop, std::nullopt, {}}).first;
    }
    Piece& piece = it->second;
    if (piece.write) check(*piece.write);
    if (writes) {
      for (const Use& use : piece.reads) check(use);
      piece.write = mine;
      piece.reads.clear();
    } else {
      // A later read of the same line stands for the earlier ones.
      std::erase_if(piece.reads, [line](const Use& use) { return use.line == line; });
      piece.reads.push_back(mine);
    }
    at = piece.end;
    ++it;
  }
  return wrong;
}

void AccessOrder::Forget(uint64_t begin, uint64_t bytes) {
  Split(begin);
  Split(begin + bytes);
  pieces_.erase(pieces_.lower_bound(begin), pieces_.lower_bound(begin + bytes));
}

}  // namespace cairn::device::fake
