#pragma once
// The KV of a prompt's first blocks, which lies at the cache node and not in pages: leased there,
// and read back layer by layer, in windows of some blocks. While attention reads one window, the
// next one is fetched.
//
//   (layer 0: window 0, 1, ... n) (layer 1: window 0, ...) ... and again for the next pass
//
// Windows that are still there are not fetched again. Every slice is verified before it is given.
// On the node's machine slices are read where they lie, if no other process can write there
// (docs/inside/formats/local.md), else they are copied into one of two staging areas.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/common/clock.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/mutex.h"
#include "services/worker/kv/earlier_kv.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/session/spill_stats.h"

namespace cairn::worker {

// Not thread-safe: the engine's thread, or a task that this thread asks for its end before it uses
// it again. Its own tasks run on the executor.
class SpilledKv final : public EarlierKv {
 public:
  // All outlive it.
  struct Dependencies {
    client::CacheClient& client;
    const Clock& clock;
    // Fetches windows ahead. A window that it has not begun when it is needed is fetched by the
    // caller.
    Executor& executor;
  };
  struct Options {
    int64_t window_tokens = 512;  // A multiple of kUnitTokens. Two windows are here at a time.
    Duration match_deadline = std::chrono::milliseconds(500);
    Duration progress = std::chrono::seconds(1);   // Between two slices.
    Duration deadline = std::chrono::seconds(10);  // Limit for a window.
    Duration lease_ttl = std::chrono::seconds(60);
    bool lend = true;
  };
  // `fingerprint`: of a namespace with the recipe raw and the layout `kv`.
  SpilledKv(const Dependencies& dependencies, const Digest& fingerprint, const KvLayout& kv,
            const Options& options, std::string trace);
  ~SpilledKv() override;  // Waits for its tasks.

  // Gives the lease back, and leases the first blocks of the prompt, `keys`, as far as the node has
  // them. Afterwards tokens() says how many of their tokens it covers, in whole units; fewer than
  // before is an answer, too. After an error tokens() is as it was, and nothing is leased: what is
  // read before the next Hold is NOT_FOUND.
  Status Hold(std::span<const BlockKey> keys);
  // The blocks that the node had in the last Hold that was OK: whole units or not, and why not the
  // one after them.
  uint32_t matched_blocks() const { return matched_blocks_; }
  MissReason miss_reason() const { return miss_reason_; }

  // Gives the lease back, so that a node that was told places may move blocks to a slower tier.
  // A read before the next Hold is NOT_FOUND.
  void LetGo();

  int64_t tokens() const override { return tokens_; }
  Status Begin(int layer) override;
  Result<Window> Next() override;
  Status End() override;

  SpillReadStats GetStats() const { return stats_; }

 private:
  struct Slot;
  // Which slices a window has.
  struct Range {
    int layer = 0;
    uint32_t begin = 0, end = 0;  // Blocks.
    bool operator==(const Range&) const = default;
  };
  Range RangeAt(int layer, uint32_t block) const;
  // The range that follows, in the next layer or in the next pass if need be.
  Range After(const Range& range) const;
  // The slot that has, or gets, the range.
  Slot& Want(const Range& range);
  void FetchAhead(const Range& range);
  // On any thread.
  void Fill(Slot& slot);
  void DropAhead();
  void Renew();

  const Dependencies dependencies_;
  const Digest fingerprint_;
  const KvLayout kv_;
  const Options options_;
  const std::string trace_;
  client::Lease lease_;
  int64_t tokens_ = 0;
  uint32_t matched_blocks_ = 0;
  MissReason miss_reason_ = MissReason::kNone;
  int layer_ = 0;
  uint32_t next_block_ = 0;
  Slot* current_ = nullptr;  // Given out.
  std::array<std::shared_ptr<Slot>, 2> slots_;
  SpillReadStats stats_;
};

}  // namespace cairn::worker
