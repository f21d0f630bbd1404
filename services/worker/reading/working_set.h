#pragma once
// The rows of one layer and KV head that are near exactly: those that steps have read, as long as
// there is room, and some that always stay.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "services/worker/reading/read_policy.h"

namespace cairn::worker {

// Not thread-safe. Rows lie in slots 0 to size() - 1 without gaps: K as [capacity][row_bytes], then
// V.
class WorkingSet {
 public:
  WorkingSet(int64_t capacity, size_t row_bytes, VictimRule victim);

  // The bytes of a set of `capacity` rows.
  static uint64_t Bytes(int64_t capacity, size_t row_bytes) {
    return static_cast<uint64_t>(capacity) * (2 * row_bytes + sizeof(Entry) + sizeof(int32_t));
  }

  int64_t size() const { return std::ssize(rows_); }
  int64_t capacity() const { return capacity_; }
  const std::byte* planes() const { return planes_.data(); }
  // By slot.
  std::span<const int32_t> rows() const { return rows_; }
  // -1: not here.
  int64_t SlotOf(int32_t row) const;

  // A step chooses these rows, in ascending order: notes it for those that are here, and appends
  // the others to `missing`.
  void Choose(std::span<const int32_t> rows, std::vector<int32_t>* missing);
  // All rows here were read, or those of `slots`.
  void NoteRead();
  void NoteRead(std::span<const int64_t> slots);

  // Puts rows in, in ascending order, each in the place of another one if there is no room: not of
  // one that the step under way has chosen, or that stays. `k`, `v`: [rows][row_bytes]. `stay`:
  // they never leave. Rows that are here already change nothing. Returns how many rows were
  // useless: no step had read them before they left, or there was no place for them.
  int64_t Add(std::span<const int32_t> rows, const std::byte* k, const std::byte* v,
              bool stay = false);
  // Choices from now on are another step's.
  void NextStep() { ++step_; }

 private:
  struct Entry {
    int32_t row = 0;
    int32_t slot = 0;
    uint32_t when = 0;  // kLru: the last step that chose it. kFifo: when it came.
    uint16_t count = 0;
    bool read = false;
    bool stays = false;
  };
  std::vector<Entry>::iterator Find(int32_t row);
  // Takes at most `count` rows out that may leave, those that the rule names first. Returns their
  // slots; *unread: how many of them no step has read.
  std::vector<int32_t> TakeOut(int64_t count, int64_t* unread);
  uint32_t Worth(const Entry& entry) const {
    return rule_ == VictimRule::kCounter ? uint32_t{entry.count} : entry.when;
  }

  const int64_t capacity_;
  const size_t row_bytes_;
  const VictimRule rule_;
  std::vector<std::byte> planes_;
  std::vector<int32_t> rows_;
  std::vector<Entry> entries_;  // By row.
  uint32_t step_ = 1;
  std::vector<uint32_t> chosen_at_;  // By slot: the last step that chose it.
};

}  // namespace cairn::worker
