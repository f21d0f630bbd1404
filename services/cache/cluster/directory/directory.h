#pragma once
// The waymarks that this member owns, as their holders announce them.

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/concurrency/mutex.h"
#include "services/cache/cluster/directory/announcement.h"

namespace cairn::cache {

// A member that holds a waymark, as far as this one knows.
struct Holder {
  std::string id;
  TierClass tier = TierClass::kMemory;
  bool operator==(const Holder&) const = default;
};

// Thread-safe.
class Directory {
 public:
  struct Options {
    uint64_t max_bytes = 64 << 20;
    // Waymarks that one holder may have here: more than it can store is a mistake or a lie.
    uint64_t max_per_holder = 4'000'000;
  };
  explicit Directory(Options options);

  // A message of the announcements from `holder`, whose process is `incarnation`. A stream that
  // begins replaces everything when it is complete, and that of any other process at once. A
  // message may come twice: the sender repeats it when it had no answer. ABORTED: a message is
  // missing, or the sums differ: the stream must begin again. INVALID_ARGUMENT: more waymarks than
  // a message, or a holder, may have. NOT_FOUND: the holder is no member, it has no stream, or
  // another process has taken its place.
  Status Apply(const std::string& holder, uint64_t incarnation, const Announcement& message);

  // The last message of this process that counts. 0: its stream must begin.
  uint64_t SequenceOf(const std::string& holder, uint64_t incarnation) const;

  // The members that may hold something: entries of all others go.
  void SetMembers(const std::vector<std::string>& ids);
  // Not every one of the members has told everything it has. Then the other owner of a waymark may
  // know more.
  bool young() const;

  // The holders of each of `hashes`, in this order, best tier first. At most 8 each.
  std::vector<std::vector<Holder>> Find(std::span<const WaymarkHash> hashes) const;

  // Gives memory of holders that left back by and by. True: nothing is left to do.
  bool SweepSome() { return table_.SweepSome(); }
  uint64_t entries() const { return table_.entries(); }
  uint64_t bytes() const { return table_.bytes(); }
  uint64_t forgotten() const { return table_.forgotten(); }

 private:
  struct Stream {
    uint64_t incarnation = 0;
    uint64_t sequence = 0;
    uint64_t count = 0, check = 0;
    HolderNumber arriving = 0;  // The number for entries that come in. Visible at once.
    HolderNumber before = 0;    // The last complete stream's, until this one is complete. 0: none.
    bool complete = false;
  };

  // It was applied before.
  static bool Has(const Stream& stream, const Announcement& message);
  Status Begin(const std::string& holder, Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Forget(HolderNumber number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  DirectoryTable table_;
  mutable Mutex mu_;
  absl::flat_hash_map<std::string, Stream> streams_ ABSL_GUARDED_BY(mu_);  // By holder.
  absl::flat_hash_map<HolderNumber, std::string> names_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<std::string> members_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
