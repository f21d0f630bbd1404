#include "services/worker/methods/reading/working_set.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace cairn::worker {

WorkingSet::WorkingSet(int64_t capacity, size_t row_bytes, VictimRule victim)
    : capacity_(capacity),
      row_bytes_(row_bytes),
      rule_(victim),
      planes_(2 * static_cast<size_t>(capacity) * row_bytes),
      chosen_at_(static_cast<size_t>(capacity)) {
  rows_.reserve(static_cast<size_t>(capacity));
  entries_.reserve(static_cast<size_t>(capacity));
}

std::vector<WorkingSet::Entry>::iterator WorkingSet::Find(int32_t row) {
  return std::ranges::lower_bound(entries_, row, {}, &Entry::row);
}

int64_t WorkingSet::SlotOf(int32_t row) const {
  const auto found = std::ranges::lower_bound(entries_, row, {}, &Entry::row);
  return found != entries_.end() && found->row == row ? found->slot : -1;
}

void WorkingSet::Choose(std::span<const int32_t> rows, std::vector<int32_t>* missing) {
  auto at = entries_.begin();
  for (const int32_t row : rows) {
    while (at != entries_.end() && at->row < row) ++at;
    if (at == entries_.end() || at->row != row) {
      missing->push_back(row);
      continue;
    }
    chosen_at_[static_cast<size_t>(at->slot)] = step_;
    if (rule_ == VictimRule::kLru) at->when = step_;
    if (++at->count == std::numeric_limits<uint16_t>::max()) {
      for (Entry& entry : entries_) entry.count /= 2;
    }
  }
}

void WorkingSet::NoteRead() {
  for (Entry& entry : entries_) entry.read = true;
}

void WorkingSet::NoteRead(std::span<const int64_t> slots) {
  for (const int64_t slot : slots) Find(rows_[static_cast<size_t>(slot)])->read = true;
}

std::vector<int32_t> WorkingSet::TakeOut(int64_t count, int64_t* unread) {
  std::vector<std::pair<uint32_t, int32_t>> leaving;  // Worth, and place in entries_.
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    if (e.stays || chosen_at_[static_cast<size_t>(e.slot)] == step_) continue;
    leaving.emplace_back(Worth(e), static_cast<int32_t>(i));
  }
  if (std::ssize(leaving) > count) {
    std::ranges::nth_element(leaving, leaving.begin() + count);
    leaving.resize(static_cast<size_t>(count));
  }
  std::vector<int32_t> slots;
  for (const auto& [worth, place] : leaving) {
    Entry& e = entries_[static_cast<size_t>(place)];
    *unread += e.read ? 0 : 1;
    slots.push_back(e.slot);
    e.slot = -1;
  }
  std::erase_if(entries_, [](const Entry& e) { return e.slot < 0; });
  return slots;
}

int64_t WorkingSet::Add(std::span<const int32_t> rows, const std::byte* k, const std::byte* v,
                        bool stay) {
  std::vector<size_t> fresh;  // Places in `rows`.
  for (size_t i = 0; i < rows.size(); ++i) {
    if (SlotOf(rows[i]) < 0) fresh.push_back(i);
  }
  int64_t useless = 0;
  const int64_t room = capacity_ - size();
  std::vector<int32_t> slots;
  if (std::ssize(fresh) > room) slots = TakeOut(std::ssize(fresh) - room, &useless);
  const auto middle = std::ssize(entries_);
  for (const size_t i : fresh) {
    Entry entry{.row = rows[i], .when = step_, .count = 1, .stays = stay};
    if (size() < capacity_) {
      entry.slot = static_cast<int32_t>(size());
      rows_.push_back(rows[i]);
    } else if (!slots.empty()) {
      entry.slot = slots.back();
      slots.pop_back();
      rows_[static_cast<size_t>(entry.slot)] = rows[i];
    } else {
      ++useless;
      continue;
    }
    const auto slot = static_cast<size_t>(entry.slot);
    chosen_at_[slot] = step_;
    std::memcpy(planes_.data() + slot * row_bytes_, k + i * row_bytes_, row_bytes_);
    std::memcpy(planes_.data() + (static_cast<size_t>(capacity_) + slot) * row_bytes_,
                v + i * row_bytes_, row_bytes_);
    entries_.push_back(entry);
  }
  std::ranges::inplace_merge(entries_, entries_.begin() + middle, {}, &Entry::row);
  return useless;
}

}  // namespace cairn::worker
