#pragma once
// A BlockSource in memory whose answers, delays and faults a test chooses. Header-only.
// Thread-safe.
//
// By default it answers inside the call:
//
//   FakeBlockSource source(&clock);
//   source.Put(fingerprint, key, block, bytes);    // A block of the source.
//   source.DelayAnswers(milliseconds(3));          // Answers become due on the clock ...
//   source.RunDue();                               // ... and are given here.
//   source.HoldAnswers();                          // It never answers ...
//   source.ReleaseAnswers();                       // ... until now, however late that is.
//   source.DropAnswers();                          // It dies: callbacks are destroyed.

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "common/concurrency/mutex.h"
#include "services/cache/store/source/block_source.h"

namespace cairn::cache::testing {

class FakeBlockSource final : public BlockSource {
 public:
  explicit FakeBlockSource(const Clock* clock) : clock_(clock) {}

  // --- Its blocks
  // -----------------------------------------------------------------------------------------------

  // `bytes`: of each part of `block`.
  void Put(const Digest& fingerprint, const BlockKey& key, SourceBlock block,
           std::vector<std::vector<std::byte>> bytes) {
    MutexLock lock(mu_);
    blocks_[{fingerprint, key}] = {std::move(block), std::move(bytes)};
  }
  void Remove(const Digest& fingerprint, const BlockKey& key) {
    MutexLock lock(mu_);
    blocks_.erase({fingerprint, key});
  }
  // The pace of the runs that Locate tells: seconds for each block.
  void SetPace(double seconds_per_block) {
    MutexLock lock(mu_);
    seconds_per_block_ = seconds_per_block;
  }
  // Locate says that it has this many blocks more than it has.
  void Promise(uint32_t blocks) {
    MutexLock lock(mu_);
    promised_ = blocks;
  }

  // --- Delays and faults
  // -----------------------------------------------------------------------------------------------

  void DelayAnswers(Duration delay) {
    MutexLock lock(mu_);
    delay_ = delay;
  }
  // Answers wait for ReleaseAnswers, past their deadlines, too.
  void HoldAnswers() {
    MutexLock lock(mu_);
    hold_ = true;
  }
  // Gives what is held, and answers later calls again.
  void ReleaseAnswers() {
    {
      MutexLock lock(mu_);
      hold_ = false;
    }
    while (RunOne(/*due_only=*/false)) {
    }
  }
  // The source is gone: what waits is destroyed without an answer.
  void DropAnswers() {
    std::multimap<TimePoint, Call> dropped;
    MutexLock lock(mu_);
    dropped.swap(calls_);
  }
  void FailLocates(int count, Status status) {
    MutexLock lock(mu_);
    locate_fault_ = {count, std::move(status)};
  }
  void FailReads(int count, Status status) {
    MutexLock lock(mu_);
    read_fault_ = {count, std::move(status)};
  }
  // The next `count` reads give one wrong byte.
  void FlipBytes(int count) {
    MutexLock lock(mu_);
    flips_ = count;
  }
  // The next `count` reads offer a part of another length than the one that was stored.
  void MisstateLengths(int count) {
    MutexLock lock(mu_);
    misstated_ = count;
  }

  // Gives the answers that are due; returns how many. Calls whose deadline has passed get
  // DEADLINE_EXCEEDED.
  size_t RunDue() {
    size_t count = 0;
    while (RunOne(/*due_only=*/true)) ++count;
    return count;
  }

  // --- Questions of a test
  // -----------------------------------------------------------------------------------------------

  size_t locates() const {
    MutexLock lock(mu_);
    return locates_;
  }
  size_t reads() const {
    MutexLock lock(mu_);
    return reads_;
  }
  // Calls without an answer.
  size_t waiting() const {
    MutexLock lock(mu_);
    return calls_.size();
  }

  // --- BlockSource
  // -----------------------------------------------------------------------------------------------

  void Locate(const Digest& fingerprint, std::span<const BlockKey> keys, TimePoint deadline,
              LocateDone done) override {
    {
      MutexLock lock(mu_);
      ++locates_;
    }
    Enter(deadline, [this, fingerprint, keys, done = std::move(done)](Status status) {
      if (status.ok()) status = NextFault(&locate_fault_);
      done(status.ok() ? Result<Located>(Find(fingerprint, keys)) : Result<Located>(status));
    });
  }
  void Read(const Digest& fingerprint, const BlockKey& key, TimePoint deadline, BlockSink* sink,
            ReadDone done) override {
    {
      MutexLock lock(mu_);
      ++reads_;
    }
    Enter(deadline, [this, fingerprint, key, sink, done = std::move(done)](Status status) {
      if (status.ok()) status = NextFault(&read_fault_);
      if (status.ok()) status = Give(fingerprint, key, sink);
      done(std::move(status));
    });
  }

 private:
  using Id = std::pair<Digest, BlockKey>;
  struct Stored {
    SourceBlock block;
    std::vector<std::vector<std::byte>> bytes;
  };
  struct Call {
    TimePoint deadline;
    std::function<void(Status)> answer;
  };
  struct Fault {
    int count = 0;
    Status status;
  };

  void Enter(TimePoint deadline, std::function<void(Status)> answer) {
    {
      MutexLock lock(mu_);
      if (hold_ || delay_ > Duration(0)) {
        calls_.emplace(clock_->Now() + delay_, Call{deadline, std::move(answer)});
        return;
      }
    }
    answer(OkStatus());
  }

  bool RunOne(bool due_only) {
    Call call;
    Status status;
    {
      MutexLock lock(mu_);
      const TimePoint now = clock_->Now();
      const auto it = std::find_if(calls_.begin(), calls_.end(), [&](const auto& entry) {
        return !due_only || entry.first <= now || entry.second.deadline <= now;
      });
      if (it == calls_.end() || (due_only && hold_)) return false;
      if (due_only && it->second.deadline <= now) {
        status = Errorf(StatusCode::kDeadlineExceeded, "fake source: too late");
      }
      call = std::move(it->second);
      calls_.erase(it);
    }
    call.answer(std::move(status));
    return true;
  }

  Status NextFault(Fault* fault) {
    MutexLock lock(mu_);
    if (fault->count == 0) return OkStatus();
    --fault->count;
    return fault->status;
  }

  Located Find(const Digest& fingerprint, std::span<const BlockKey> keys) const {
    MutexLock lock(mu_);
    SourceRun run;
    while (run.blocks < keys.size()) {
      const auto it = blocks_.find({fingerprint, keys[run.blocks]});
      if (it == blocks_.end()) break;
      for (const SourceBlock::Part& part : it->second.block.parts) run.bytes += part.bytes;
      ++run.blocks;
    }
    run.blocks += promised_;
    if (run.blocks == 0) return {};
    run.seconds = seconds_per_block_ * run.blocks;
    return {.runs = {run}};
  }

  // Holds no lock while it calls the sink.
  Status Give(const Digest& fingerprint, const BlockKey& key, BlockSink* sink) {
    Stored stored;
    bool flip = false;
    {
      MutexLock lock(mu_);
      const auto it = blocks_.find({fingerprint, key});
      if (it == blocks_.end()) {
        return Errorf(StatusCode::kNotFound, "fake source: no block {}", key.Hex());
      }
      stored = it->second;
      if (misstated_ > 0) {
        --misstated_;
        stored.block.parts.back().bytes -= 1;
        stored.bytes.back().pop_back();
      }
      if (flips_ > 0) {
        --flips_;
        flip = true;
      }
    }
    CAIRN_ASSIGN_OR_RETURN(const auto room, sink->Begin(stored.block));
    for (size_t i = 0; i < room.size(); ++i) {
      std::memcpy(room[i].data(), stored.bytes[i].data(), room[i].size());
    }
    if (flip) room.back().back() ^= std::byte{1};
    return sink->Finish();
  }

  const Clock* const clock_;
  mutable Mutex mu_;
  std::map<Id, Stored> blocks_ ABSL_GUARDED_BY(mu_);
  std::multimap<TimePoint, Call> calls_ ABSL_GUARDED_BY(mu_);
  Fault locate_fault_ ABSL_GUARDED_BY(mu_);
  Fault read_fault_ ABSL_GUARDED_BY(mu_);
  Duration delay_ ABSL_GUARDED_BY(mu_){0};
  bool hold_ ABSL_GUARDED_BY(mu_) = false;
  double seconds_per_block_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t promised_ ABSL_GUARDED_BY(mu_) = 0;
  int flips_ ABSL_GUARDED_BY(mu_) = 0;
  int misstated_ ABSL_GUARDED_BY(mu_) = 0;
  size_t locates_ ABSL_GUARDED_BY(mu_) = 0;
  size_t reads_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::cache::testing
