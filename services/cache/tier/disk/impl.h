#pragma once
// The disk tier's bookkeeping and threads over a Store. Private to this folder.
//
// Threads: readers (a pool), one writer (so that values reach the database in the order of their sequence numbers), the flusher (durability
// in time; recovery from a full disk) and the collector (room). mu_ is never held across a call of the store.

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/cache/tier/disk/collection.h"
#include "services/cache/tier/disk/directory.h"
#include "services/cache/tier/disk/disk_tier.h"
#include "services/cache/tier/disk/store.h"
#include "services/common/concurrency/executor.h"
#include "services/common/concurrency/mutex.h"

namespace cairn::cache {

class DiskTier::Impl {
 public:
  static Result<std::unique_ptr<Impl>> Open(const DiskTierOptions& options);
  ~Impl();

  Result<Extent> Reserve(uint32_t length);
  void Release(const Extent& extent);
  void Write(const Extent& extent, std::string_view record, std::span<const std::byte> source,
             IoCallback done);
  void Read(const Extent& extent, std::span<std::byte> destination, IoCallback done);
  Status Recover(const RecoverVisitor& visitor);
  Status Flush();
  Status PutMeta(std::string_view name, std::string_view value);
  Status DeleteMeta(std::string_view name);
  Status ListMeta(const std::function<void(std::string_view, std::string_view)>& visitor);

  TierStats GetStats() const;
  DiskTierStats GetDiskStats() const;
  void WaitForCollection();

  const DiskTierOptions options;
  disk::Directory directory;
  IoMode io_mode = IoMode::kBuffered;
  std::unique_ptr<disk::Store> store;

 private:
  using Clock = std::chrono::steady_clock;
  enum class State : uint8_t { kReserved, kWriting, kWritten };
  struct Entry {
    uint64_t sequence = 0;  // Of kWriting and kWritten.
    uint32_t length = 0;
    State state = State::kReserved;
  };

  Impl(const DiskTierOptions& chosen, disk::Directory opened)
      : options(chosen), directory(std::move(opened)) {}
  void Start(uint64_t epoch);

  // On the writer thread.
  Status WriteNow(const Extent& extent, uint64_t sequence, std::string_view record,
                  std::span<const std::byte> source);
  Status WaitForRoom(uint32_t bytes);
  Status ReadNow(const Extent& extent, uint64_t sequence, std::span<std::byte> destination);

  Status FlushOnce();
  void FlusherLoop();
  void CollectorLoop();
  // One step; false when there was nothing to do.
  bool CollectOnce();
  std::shared_ptr<disk::LiveValues> SnapshotLive();
  void WakeFlusher();
  void WakeCollector();

  // Constant after Start.
  uint64_t target_file_bytes_ = 0;
  uint64_t soft_garbage_bytes_ = 0;  // The collector starts.
  uint64_t hard_file_bytes_ = 0;     // Writes wait for the collector.

  mutable Mutex mu_;
  absl::flat_hash_map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mu_);
  uint64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t next_sequence_ ABSL_GUARDED_BY(mu_) = 1;
  bool recovered_ ABSL_GUARDED_BY(mu_) = false;
  // Released extents whose records are still to be deleted: by the next write or flush.
  std::vector<uint64_t> to_forget_ ABSL_GUARDED_BY(mu_);
  uint64_t written_ ABSL_GUARDED_BY(mu_) = 0;   // Bytes of completed writes, ever.
  uint64_t flushed_ ABSL_GUARDED_BY(mu_) = 0;   // Of these, known to be on disk.
  // When the oldest change that is not on disk was made.
  std::optional<Clock::time_point> dirty_since_ ABSL_GUARDED_BY(mu_);
  bool fault_ ABSL_GUARDED_BY(mu_) = false;  // A write or flush failed: Resume is to be tried.
  bool collect_wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool collector_idle_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t collector_steps_ ABSL_GUARDED_BY(mu_) = 0;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;   // No write waits any more.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;  // The threads end.
  CondVar flusher_cv_;
  CondVar collector_cv_;
  CondVar collected_cv_;  // After every step of the collector.

  Mutex flush_mu_;  // One flush at a time. Taken before mu_.
  // Held while a batch carries what it took from to_forget_, so that the collector does not count that as durable. Taken before mu_.
  Mutex batch_mu_;

  std::atomic<uint64_t> file_bytes_{0};
  std::atomic<uint64_t> read_bytes_{0};
  std::atomic<uint64_t> io_errors_{0};
  std::atomic<uint64_t> corrupt_reads_{0};
  std::atomic<uint64_t> missing_reads_{0};
  std::atomic<uint64_t> corrupt_records_{0};
  std::atomic<uint64_t> flushes_{0};
  std::atomic<uint64_t> gc_runs_{0};
  std::atomic<uint64_t> gc_written_bytes_{0};

  std::unique_ptr<ThreadPool> readers_;
  std::unique_ptr<ThreadPool> writer_;
  std::thread flusher_;
  std::thread collector_;
};

}  // namespace cairn::cache
