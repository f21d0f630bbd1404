#pragma once
// Which committed blocks are copied to disk, and when.
//
// While the disk tier has room, all blocks are copied, at once. Above its high-water mark a copy
// costs another block its place, so only blocks that were asked for a second time, or by a hint,
// are copied. The copies never take more bytes per second than the write budget. A block waits for
// the budget as long as a committed block may wait for its copy, and then stays only in RAM. An
// explicit flush copies the blocks that it waits for, also above the mark, but never faster than
// the budget. The flush at the end of the node has no limits. A block that was not admitted is
// considered again when it is used.
//
// Thread-safe. The caller passes the time.

#include <algorithm>
#include <cstdint>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"

namespace cairn::cache {

// A budget of bytes per second. Unused bytes are kept for at most one second.
class TokenBucket {
 public:
  // `rate` 0: no limit.
  explicit TokenBucket(uint64_t rate) : rate_(static_cast<double>(rate)), tokens_(rate_) {}

  // Zero: the bytes were taken. Otherwise nothing was taken, and the caller may try again after the
  // returned time. More than a second's bytes are taken when the bucket is full, and the bucket is
  // then negative.
  Duration Take(uint64_t bytes, TimePoint now) {
    if (rate_ == 0) return Duration(0);
    MutexLock lock(mu_);
    if (last_ == TimePoint()) last_ = now;
    if (now > last_) {
      tokens_ = std::min(rate_, tokens_ + rate_ * Seconds(now - last_));
      last_ = now;
    }
    const double needed = std::min(static_cast<double>(bytes), rate_);
    if (tokens_ >= needed) {
      tokens_ -= static_cast<double>(bytes);
      return Duration(0);
    }
    return Duration(static_cast<int64_t>((needed - tokens_) / rate_ * 1e9) + 1);
  }

 private:
  const double rate_;
  Mutex mu_;
  double tokens_ ABSL_GUARDED_BY(mu_);
  TimePoint last_ ABSL_GUARDED_BY(mu_){};
};

class DiskAdmission {
 public:
  struct Options {
    double high_water = 1.0;        // Share of the tier. 1: there is no mark.
    uint64_t bytes_per_second = 0;  // 0: no limit.
    Duration patience{0};           // How long a block waits for the budget.
  };
  struct Candidate {
    uint64_t bytes = 0;
    double used_share = 0;  // The state of the disk tier, now.
    // Somebody asked for it since it was stored, or it was here before and is stored again.
    bool touched = false;
    bool hinted = false;     // Somebody said that it will be asked for.
    bool flushed = false;    // An explicit flush waits for it.
    bool unlimited = false;  // The flush at the end of the node waits for it.
    Duration waited{0};      // Since it was committed.
  };
  enum class Verdict : uint8_t { kCopy, kWait, kNoSecondTouch, kOverBudget };
  struct Decision {
    Verdict verdict = Verdict::kCopy;
    Duration wait{0};  // With kWait.
  };

  explicit DiskAdmission(const Options& options)
      : options_(options), budget_(options.bytes_per_second) {}

  // kCopy takes the bytes from the budget.
  Decision Decide(const Candidate& c, TimePoint now) {
    if (c.unlimited) return {};
    if (!c.flushed && options_.high_water < 1 && c.used_share >= options_.high_water &&
        !c.touched && !c.hinted) {
      return {Verdict::kNoSecondTouch};
    }
    const Duration wait = budget_.Take(c.bytes, now);
    if (wait == Duration(0)) return {};
    // Its caller waits, and is told if that takes too long.
    if (c.flushed) return {Verdict::kWait, wait};
    if (c.waited >= options_.patience) return {Verdict::kOverBudget};
    return {Verdict::kWait, std::min(wait, options_.patience - c.waited)};
  }

 private:
  const Options options_;
  TokenBucket budget_;
};

}  // namespace cairn::cache
