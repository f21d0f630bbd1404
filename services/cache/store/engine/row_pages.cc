#include "services/cache/store/engine/row_pages.h"

#include <algorithm>

#include "cairn/common/hash.h"

namespace cairn::cache {

PagesToRead::PagesToRead(const format::SliceEntry& slice)
    : slice_(slice),
      pages_(SlicePages::Of(slice)),
      wanted_(pages_.count()),
      units_(slice.length / SlicePages::kBytes + 1) {}

void PagesToRead::Want(uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return;
  const uint64_t last = offset + bytes - 1;
  const auto mark = [](std::vector<bool>& set, uint64_t first, uint64_t end) {
    std::fill(set.begin() + static_cast<ptrdiff_t>(first),
              set.begin() + static_cast<ptrdiff_t>(end), true);
  };
  mark(units_, offset / SlicePages::kBytes, last / SlicePages::kBytes + 1);
  mark(wanted_, (slice_.offset + offset) / SlicePages::kBytes - pages_.begin,
       (slice_.offset + last) / SlicePages::kBytes + 1 - pages_.begin);
}

std::vector<SlicePages> PagesToRead::Runs() const {
  const auto most =
      kMostForOne * static_cast<uint64_t>(std::count(units_.begin(), units_.end(), true));
  if (most >= pages_.count()) return {pages_};
  std::vector<SlicePages> runs;
  uint64_t total = 0;
  for (uint64_t i = 0; i < wanted_.size(); ++i) {
    if (!wanted_[i]) continue;
    const uint64_t page = pages_.begin + i;
    ++total;
    if (!runs.empty() && runs.back().end == page) {
      ++runs.back().end;
    } else {
      runs.push_back({page, page + 1});
    }
  }
  // The smallest gaps first.
  std::vector<size_t> gaps;
  const auto gap = [&](size_t i) { return runs[i].begin - runs[i - 1].end; };
  for (size_t i = 1; i < runs.size(); ++i) {
    if (gap(i) <= kWidestGap) gaps.push_back(i);
  }
  std::ranges::stable_sort(gaps, {}, gap);
  std::vector<bool> joined(runs.size());
  for (const size_t i : gaps) {
    if (total + gap(i) > most) break;
    total += gap(i);
    joined[i] = true;
  }
  std::vector<SlicePages> out;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (joined[i]) {
      out.back().end = runs[i].end;
    } else {
      out.push_back(runs[i]);
    }
  }
  return out;
}

void SlicePieces::Add(const SlicePages& run, std::span<const std::byte> bytes,
                      std::span<const uint64_t> hashes) {
  bytes_ += bytes.size();
  pieces_.push_back({run, bytes, {hashes.begin(), hashes.end()}});
}

bool SlicePieces::Verify() const {
  for (const Piece& piece : pieces_) {
    if (piece.hashes.size() != piece.run.count()) return false;
    const uint64_t from = piece.run.begin * SlicePages::kBytes;
    for (uint64_t i = 0; i < piece.run.count(); ++i) {
      const auto [begin, end] = InPage(slice_, piece.run.begin + i);
      if (end - from > piece.bytes.size()) return false;
      if (Xxh3(piece.bytes.subspan(begin - from, end - begin)) != piece.hashes[i]) return false;
    }
  }
  return true;
}

std::span<const std::byte> SlicePieces::At(uint64_t offset, uint64_t bytes) const {
  const uint64_t at = slice_.offset + offset;  // In the part.
  for (const Piece& piece : pieces_) {
    const uint64_t from = piece.run.begin * SlicePages::kBytes;
    if (at < from || at - from > piece.bytes.size()) continue;
    if (bytes > piece.bytes.size() - (at - from)) continue;
    return piece.bytes.subspan(at - from, bytes);
  }
  return {};
}

}  // namespace cairn::cache
