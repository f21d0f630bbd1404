#pragma once
// A PersistentTier in memory whose faults a test chooses. Header-only. Thread-safe.
//
// By default every operation succeeds and calls back inside the call. A "crash" loses what was not
// flushed; the object then stands for the reopened tier:
//
//   FakeTier disk({.capacity_bytes = 1 << 20});
//   disk.HoldCallbacks();            // Operations queue up ...
//   disk.RunHeld();                  // ... until told.
//   disk.FailWrites(1, UNAVAILABLE); // The next write fails.
//   disk.Crash();                    // Then Recover() again.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache::testing {

struct FakeTierOptions {
  TierKind kind = TierKind::kDisk;
  uint64_t capacity_bytes = 1 << 20;
  uint32_t max_extent_bytes = 1 << 20;
  uint64_t map_bytes_per_extent = 0;
  bool reads_ranges = true;
};

class FakeTier final : public PersistentTier {
 public:
  using Options = FakeTierOptions;
  explicit FakeTier(Options options = {}) : options_(options) {}

  // --- Faults
  // -----------------------------------------------------------------------------------------------

  // After `skip` more writes, the next `count` fail with `status`, and leave nothing behind.
  void FailWrites(int count, Status status, int skip = 0) {
    MutexLock lock(mu_);
    write_fault_ = {skip, count, std::move(status)};
  }
  void FailReads(int count, Status status, int skip = 0) {
    MutexLock lock(mu_);
    read_fault_ = {skip, count, std::move(status)};
  }
  // Reserve fails with RESOURCE_EXHAUSTED while set.
  void RefuseReservations(bool refuse) {
    MutexLock lock(mu_);
    refuse_reservations_ = refuse;
  }
  void FailFlushes(int count, Status status) {
    MutexLock lock(mu_);
    flush_fault_ = {0, count, std::move(status)};
  }
  // After `skip` more named values were written or deleted, the next `count` are not. With a large
  // `count` and Crash: the process died between two of them.
  void FailMeta(int count, Status status, int skip = 0) {
    MutexLock lock(mu_);
    meta_fault_ = {skip, count, std::move(status)};
  }
  // The next `count` reads succeed with one byte flipped, as a tier without checksums would.
  void CorruptReads(int count) {
    MutexLock lock(mu_);
    corrupt_reads_ = count;
  }
  // Flips a bit of a stored byte for good. False when the extent has no bytes.
  bool CorruptStored(const Extent& extent, size_t offset) {
    MutexLock lock(mu_);
    const auto it = extents_.find(extent.id);
    if (it == extents_.end() || it->second.bytes == nullptr) return false;
    if (it->second.bytes->size() <= offset) return false;
    (*it->second.bytes)[offset] ^= std::byte{1};
    return true;
  }
  // Forgets stored bytes: reads answer NOT_FOUND.
  void LoseStored(const Extent& extent) {
    MutexLock lock(mu_);
    if (const auto it = extents_.find(extent.id); it != extents_.end()) it->second.written = false;
  }
  // Reads and Writes wait until RunHeld or RunOneHeld.
  void HoldCallbacks(bool hold = true) {
    MutexLock lock(mu_);
    hold_ = hold;
  }
  // While operations are held: reads beyond `count` are refused, as by a full queue.
  void LimitReads(size_t count) {
    MutexLock lock(mu_);
    read_limit_ = count;
  }
  // Runs the oldest held operation and its callback. False when there is none.
  bool RunOneHeld() {
    std::function<void()> operation;
    {
      MutexLock lock(mu_);
      if (held_.empty()) return false;
      operation = std::move(held_.front());
      held_.pop_front();
    }
    operation();
    return true;
  }
  // Runs what is held, operations added meanwhile included. Returns how many.
  size_t RunHeld() {
    size_t count = 0;
    while (RunOneHeld()) ++count;
    return count;
  }
  size_t held() const {
    MutexLock lock(mu_);
    return held_.size();
  }
  // Told of each operation that is held, for owners that run them by and by.
  void OnHeld(std::function<void()> told) {
    MutexLock lock(mu_);
    on_held_ = std::move(told);
  }
  // The tier mixes up two extents that are written and equally long: each has the bytes and the
  // record of the other. False: there are no such extents.
  bool MixUpTwo() {
    MutexLock lock(mu_);
    Stored* first = nullptr;
    for (auto& [id, stored] : extents_) {
      if (!stored.written) continue;
      if (first == nullptr) {
        first = &stored;
      } else if (stored.length == first->length) {
        std::swap(stored, *first);
        return true;
      }
    }
    return false;
  }
  // NextVictims names the oldest `size` extents at a time, until they are gone. 0: none.
  void GroupVictims(size_t size, uint64_t keep_bytes, std::chrono::nanoseconds age) {
    MutexLock lock(mu_);
    group_size_ = size;
    group_keep_bytes_ = keep_bytes;
    group_age_ = age;
  }
  // How often NextVictims named some.
  size_t victim_groups() const {
    MutexLock lock(mu_);
    return victim_groups_;
  }
  // As a scrubber would.
  void ReportDamage(const Extent& extent) {
    std::string record;
    DamageListener listener;
    {
      MutexLock lock(mu_);
      const auto it = extents_.find(extent.id);
      if (it == extents_.end()) return;
      record = it->second.record;
      listener = listener_;
    }
    if (listener) listener(extent, record);
  }
  // The process died: what was not flushed is gone, held operations never call back. Recover() may
  // then be called again.
  void Crash() {
    std::deque<std::function<void()>> dropped;
    MutexLock lock(mu_);
    dropped.swap(held_);
    reads_held_ = 0;
    extents_ = durable_;
    for (auto& [id, stored] : extents_) stored.head_known = false;
    used_bytes_ = 0;
    for (const auto& [id, stored] : extents_) used_bytes_ += stored.length;
    recovered_ = false;
  }

  // Another tier, on a copy of the device as it is found after a power loss, or else after a
  // kill -9, which loses nothing that was written.
  std::unique_ptr<FakeTier> CopyDevice(bool power_loss) const {
    auto copy = std::make_unique<FakeTier>(options_);
    MutexLock lock(mu_);
    MutexLock other(copy->mu_);
    copy->durable_ = durable_;
    if (!power_loss) copy->durable_ = WrittenExtents();
    copy->extents_ = copy->durable_;
    for (const auto& [id, stored] : copy->extents_) copy->used_bytes_ += stored.length;
    copy->meta_ = meta_;
    copy->next_id_ = next_id_;
    return copy;
  }

  // --- Tier
  // -----------------------------------------------------------------------------------------------

  TierKind kind() const override { return options_.kind; }
  uint32_t max_extent_bytes() const override { return options_.max_extent_bytes; }
  std::span<std::byte> Map(const Extent&) override { return {}; }

  Result<Extent> Reserve(uint32_t length) override {
    if (length == 0 || length > options_.max_extent_bytes) {
      return InvalidArgument("field 'length': got {}, expected 1 to {}", length,
                             options_.max_extent_bytes);
    }
    MutexLock lock(mu_);
    if (refuse_reservations_ || used_bytes_ + length > options_.capacity_bytes) {
      return Errorf(StatusCode::kResourceExhausted, "fake tier: {} of {} bytes used, {} asked for",
                    used_bytes_, options_.capacity_bytes, length);
    }
    used_bytes_ += length;
    const uint64_t id = next_id_++;
    extents_[id].length = length;
    return Extent{id, length};
  }

  void Release(const Extent& extent) override {
    MutexLock lock(mu_);
    const auto it = extents_.find(extent.id);
    CAIRN_CHECK(it != extents_.end() && it->second.length == extent.length);
    used_bytes_ -= extent.length;
    extents_.erase(it);
    ++releases_;
  }

  void Write(const Extent& extent, std::string_view record, std::span<const std::byte> source,
             IoCallback done) override {
    RunOrHold([this, extent, record, source, done = std::move(done)] {
      done(WriteNow(extent, record, source));
    });
  }

  void Read(const Extent& extent, std::span<std::byte> destination, IoCallback done) override {
    ReadOrHold([this, extent, destination] { return ReadNow(extent, destination); },
               std::move(done));
  }
  bool reads_ranges() const override { return options_.reads_ranges; }
  void ReadRange(const Extent& extent, uint64_t offset, std::span<std::byte> destination,
                 IoCallback done) override {
    ReadOrHold(
        [this, extent, offset, destination] { return ReadRangeNow(extent, offset, destination); },
        std::move(done));
  }

  uint64_t MapBytes() const override { return GetStats().extents * options_.map_bytes_per_extent; }
  TierStats GetStats() const override {
    MutexLock lock(mu_);
    return {.capacity_bytes = options_.capacity_bytes,
            .used_bytes = used_bytes_,
            .extents = extents_.size(),
            .read_bytes = read_bytes_,
            .written_bytes = written_bytes_,
            .io_errors = io_errors_};
  }

  // --- PersistentTier
  // -----------------------------------------------------------------------------------------------

  Status Recover(const RecoverVisitor& visitor) override {
    std::vector<std::pair<Extent, std::string>> found;
    {
      MutexLock lock(mu_);
      if (recovered_) return Errorf(StatusCode::kFailedPrecondition, "Recover was called before");
      recovered_ = true;
      for (const auto& [id, stored] : extents_) {
        found.emplace_back(Extent{id, stored.length}, stored.record);
      }
    }
    for (const auto& [extent, record] : found) {
      if (!visitor(extent, record)) Release(extent);
    }
    return OkStatus();
  }

  using PersistentTier::Flush;
  Status Flush(std::chrono::nanoseconds, const std::function<bool()>&) override {
    MutexLock lock(mu_);
    ++flushes_;
    if (Status fault = flush_fault_.Next(); !fault.ok()) return fault;
    durable_ = WrittenExtents();
    return OkStatus();
  }

  Result<std::string> RecordOf(const Extent& extent) override {
    MutexLock lock(mu_);
    const auto it = extents_.find(extent.id);
    if (it == extents_.end() || !it->second.written) {
      return Errorf(StatusCode::kNotFound, "extent {}: no record", extent.id);
    }
    return it->second.record;
  }
  VictimGroup NextVictims() override {
    VictimGroup group;
    MutexLock lock(mu_);
    group.keep_bytes = group_keep_bytes_;
    for (const auto& [id, stored] : extents_) {
      if (group.members.size() >= group_size_) break;
      if (!stored.written || id <= last_victim_) continue;
      group.members.push_back({{id, stored.length}, stored.record, group_age_});
    }
    if (!group.members.empty()) {
      last_victim_ = group.members.back().extent.id;
      ++victim_groups_;
    }
    return group;
  }
  void SetDamageListener(DamageListener listener) override {
    MutexLock lock(mu_);
    listener_ = std::move(listener);
  }

  Status PutMeta(std::string_view name, std::string_view value) override {
    MutexLock lock(mu_);
    if (Status fault = meta_fault_.Next(); !fault.ok()) return fault;
    meta_[std::string(name)] = std::string(value);
    return OkStatus();
  }
  Status DeleteMeta(std::string_view name) override {
    MutexLock lock(mu_);
    if (Status fault = meta_fault_.Next(); !fault.ok()) return fault;
    meta_.erase(std::string(name));
    return OkStatus();
  }
  Status ListMeta(const std::function<void(std::string_view, std::string_view)>& visitor) override {
    std::map<std::string, std::string> copy;
    {
      MutexLock lock(mu_);
      copy = meta_;
    }
    for (const auto& [name, value] : copy) visitor(name, value);
    return OkStatus();
  }

  // --- Questions of a test
  // -----------------------------------------------------------------------------------------------

  uint64_t flushes() const {
    MutexLock lock(mu_);
    return flushes_;
  }
  uint64_t releases() const {
    MutexLock lock(mu_);
    return releases_;
  }
  size_t most_reads_held() const {
    MutexLock lock(mu_);
    return most_reads_held_;
  }

 private:
  struct Stored {
    uint32_t length = 0;
    bool written = false;
    bool head_known = false;  // As DiskTier: written or read whole since the start.
    std::string record;
    std::shared_ptr<std::vector<std::byte>> bytes;  // Shared by what is there and what is durable.
  };
  struct Fault {
    int skip = 0;
    int count = 0;
    Status status;
    Status Next() {
      if (count == 0) return OkStatus();
      if (skip > 0) {
        --skip;
        return OkStatus();
      }
      --count;
      return status;
    }
  };

  std::map<uint64_t, Stored> WrittenExtents() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::map<uint64_t, Stored> written;
    for (const auto& entry : extents_) {
      if (entry.second.written) written.insert(written.end(), entry);
    }
    return written;
  }

  void RunOrHold(std::function<void()> operation) {
    std::function<void()> told;
    {
      MutexLock lock(mu_);
      if (hold_) {
        held_.push_back(std::exchange(operation, nullptr));
        told = on_held_;
      }
    }
    if (operation) {
      operation();
    } else if (told) {
      told();
    }
  }

  void ReadOrHold(std::function<Status()> read, IoCallback done) {
    bool held = false;
    bool refused = false;
    {
      MutexLock lock(mu_);
      held = hold_;
      refused = held && reads_held_ >= read_limit_;
      if (held && !refused) most_reads_held_ = std::max(most_reads_held_, ++reads_held_);
      if (refused) ++io_errors_;
    }
    if (refused) return done(Errorf(StatusCode::kResourceExhausted, "the read queue is full"));
    RunOrHold([this, held, read = std::move(read), done = std::move(done)] {
      if (held) {
        MutexLock lock(mu_);
        --reads_held_;
      }
      done(read());
    });
  }

  Status WriteNow(const Extent& extent, std::string_view record,
                  std::span<const std::byte> source) {
    MutexLock lock(mu_);
    if (Status fault = write_fault_.Next(); !fault.ok()) {
      ++io_errors_;
      return fault;
    }
    const auto it = extents_.find(extent.id);
    if (it == extents_.end() || it->second.written) {
      return Errorf(StatusCode::kFailedPrecondition, "extent {}: not reserved, or written before",
                    extent.id);
    }
    if (source.size() != extent.length) {
      return InvalidArgument("field 'source': got {} bytes, expected {}", source.size(),
                             extent.length);
    }
    it->second.written = it->second.head_known = true;
    it->second.record = std::string(record);
    it->second.bytes = std::make_shared<std::vector<std::byte>>(source.begin(), source.end());
    written_bytes_ += source.size();
    return OkStatus();
  }

  Status ReadNow(const Extent& extent, std::span<std::byte> destination) {
    MutexLock lock(mu_);
    if (destination.size() != extent.length) {
      return InvalidArgument("field 'destination': got {} bytes, expected {}", destination.size(),
                             extent.length);
    }
    if (Status fault = read_fault_.Next(); !fault.ok()) {
      ++io_errors_;
      return fault;
    }
    const auto it = extents_.find(extent.id);
    if (it == extents_.end() || !it->second.written) {
      return Errorf(StatusCode::kNotFound, "extent {}: no bytes", extent.id);
    }
    std::memcpy(destination.data(), it->second.bytes->data(), destination.size());
    if (corrupt_reads_ > 0) {
      --corrupt_reads_;
      destination[destination.size() / 2] ^= std::byte{1};
    }
    read_bytes_ += destination.size();
    it->second.head_known = true;
    return OkStatus();
  }

  // A tier that mixes extents up does not see it here: its owner's records tell.
  Status ReadRangeNow(const Extent& extent, uint64_t offset, std::span<std::byte> destination) {
    MutexLock lock(mu_);
    if (offset % kRangeGrain != 0 || offset > extent.length || destination.empty() ||
        destination.size() > extent.length - offset) {
      return InvalidArgument("field 'offset': got {} bytes from {} on", destination.size(), offset);
    }
    if (Status fault = read_fault_.Next(); !fault.ok()) {
      ++io_errors_;
      return fault;
    }
    const auto it = extents_.find(extent.id);
    if (it == extents_.end() || !it->second.written) {
      return Errorf(StatusCode::kNotFound, "extent {}: no bytes", extent.id);
    }
    if (offset == 0 && !it->second.head_known) {
      return Errorf(StatusCode::kFailedPrecondition, "extent {}: not read whole yet", extent.id);
    }
    std::memcpy(destination.data(), it->second.bytes->data() + offset, destination.size());
    if (corrupt_reads_ > 0) {
      --corrupt_reads_;
      destination[destination.size() / 2] ^= std::byte{1};
    }
    read_bytes_ += destination.size();
    return OkStatus();
  }

  const Options options_;
  mutable Mutex mu_;
  std::map<uint64_t, Stored> extents_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, Stored> durable_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> meta_ ABSL_GUARDED_BY(mu_);
  std::deque<std::function<void()>> held_ ABSL_GUARDED_BY(mu_);
  Fault write_fault_ ABSL_GUARDED_BY(mu_);
  Fault read_fault_ ABSL_GUARDED_BY(mu_);
  Fault flush_fault_ ABSL_GUARDED_BY(mu_);
  Fault meta_fault_ ABSL_GUARDED_BY(mu_);
  int corrupt_reads_ ABSL_GUARDED_BY(mu_) = 0;
  size_t group_size_ ABSL_GUARDED_BY(mu_) = 0;
  size_t victim_groups_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t group_keep_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::chrono::nanoseconds group_age_ ABSL_GUARDED_BY(mu_){0};
  uint64_t last_victim_ ABSL_GUARDED_BY(mu_) = 0;
  DamageListener listener_ ABSL_GUARDED_BY(mu_);
  std::function<void()> on_held_ ABSL_GUARDED_BY(mu_);
  bool hold_ ABSL_GUARDED_BY(mu_) = false;
  size_t read_limit_ ABSL_GUARDED_BY(mu_) = SIZE_MAX;
  size_t reads_held_ ABSL_GUARDED_BY(mu_) = 0;
  size_t most_reads_held_ ABSL_GUARDED_BY(mu_) = 0;
  bool refuse_reservations_ ABSL_GUARDED_BY(mu_) = false;
  bool recovered_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t read_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t written_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t io_errors_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t flushes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t releases_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::cache::testing
