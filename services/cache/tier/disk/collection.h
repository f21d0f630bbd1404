#pragma once
// Which value files to drop and which to rewrite, as a pure function.
//
// Values are keyed by the order in which they were written, so value files have disjoint key ranges and are never merged by RocksDB: a
// value is written once. The price is that released values stay in their file. The planner gives that room back: files without a living
// value are dropped unread; when garbage exceeds what is allowed, the file with the smallest living share is rewritten, together with
// neighbours as long as the result is one file. It also joins runs of small files, which flushes of a quiet node leave.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cairn::cache::disk {

// A file of values. Key ranges of files at level 1 are disjoint.
struct ValueFile {
  std::string name;
  int level = 0;       // 0: fresh from a flush, will be moved to 1 by RocksDB. Only files at level 1 are planned for.
  uint64_t first = 0;  // Smallest and largest sequence number.
  uint64_t last = 0;
  uint64_t bytes = 0;
  bool busy = false;  // Being compacted.
};

// The values that live, at one moment. Immutable once Seal was called; then safe to share between threads.
class LiveValues {
 public:
  void Add(uint64_t sequence, uint32_t bytes) { values_.emplace_back(sequence, bytes); }
  // `horizon`: sequence numbers above it were given out later and count as living.
  void Seal(uint64_t horizon);
  uint64_t horizon() const { return horizon_; }
  bool Lives(uint64_t sequence) const;
  // The smallest living sequence number >= `sequence`, at most horizon + 1.
  uint64_t NextLiving(uint64_t sequence) const;
  uint64_t BytesIn(uint64_t first, uint64_t last) const;

 private:
  size_t LowerBound(uint64_t sequence) const;
  std::vector<std::pair<uint64_t, uint32_t>> values_;
  std::vector<uint64_t> bytes_before_;  // One more than values_.
  uint64_t horizon_ = 0;
};

struct CollectionPolicy {
  uint64_t allowed_garbage_bytes = 0;
  uint64_t target_file_bytes = 0;
  size_t small_files = 16;  // So many small files in a row (below a quarter of the target) are joined.
};

struct CollectionPlan {
  std::vector<std::pair<uint64_t, uint64_t>> drop;  // Key ranges of files without a living value, ends inclusive.
  std::vector<std::string> rewrite;                 // Neighbours at level 1, to become at most one file or so.
  bool empty() const { return drop.empty() && rewrite.empty(); }
};

CollectionPlan PlanCollection(std::vector<ValueFile> files, const LiveValues& live,
                              const CollectionPolicy& policy);

}  // namespace cairn::cache::disk
