#pragma once
// Pushes computed blocks to the cache node in the background.
//
// A block waits as a reference to its KV page, so queueing it copies nothing. RunOnce takes blocks
// in order, a batch of one namespace at a time. It takes room at the node, writes the parts there
// (on the same machine into the node's own memory, otherwise into buffers of the client) and hashes
// while it copies. Then it lets go of the pages and commits. With a recipe other than raw it first
// encodes the parts into its own buffers, those of pages in a device there. It never blocks the
// thread that queues: blocks that do not fit, or that the node refuses, are dropped and counted.
//
// Pause() keeps the next batch from starting: the engine pauses pushes while a prompt is prefilled,
// because copying and sending would take time from the first token.
//
// The queue has no thread of its own: push_thread.h is one for it.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/common/clock.h"
#include "cairn/common/kv/statistic.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "common/concurrency/wakeup.h"
#include "services/worker/compute/page_encoder.h"
#include "services/worker/session/kv_codec.h"

namespace cairn::worker {

struct ComputedBlock;

// What is stored of a block where the namespace's recipe keeps only some of its rows. Immutable.
class BlockSlices {
 public:
  BlockSlices() = default;
  virtual ~BlockSlices() = default;
  BlockSlices(const BlockSlices&) = delete;
  BlockSlices& operator=(const BlockSlices&) = delete;

  // Of all rows, not encoded.
  virtual uint64_t bytes() const = 0;
  // Appends the slice of one layer of the block to `part`. Errors: those of KvCodec::Encode.
  virtual Status Append(const ComputedBlock& block, const KvCodec& codec, int layer,
                        KvCodec::Scratch& scratch, std::vector<std::byte>* part) const = 0;
};

// A full block whose KV was computed by the prefill path.
struct ComputedBlock {
  BlockKey key;
  std::optional<BlockKey> parent;  // nullopt: the prompt's first block.
  uint64_t first_position = 0;     // Position of its first token.
  double compute_seconds = 0;
  std::span<const std::byte> page;   // The block's bytes, all layers.
  std::shared_ptr<const void> hold;  // Keeps `page` alive and unchanged.
  uint64_t stamp = 0;                // KvSequence::PageStamp of the page. 0: it is in no device.
  std::shared_ptr<const BlockSlices> selected = nullptr;  // Null: all rows are stored.
  std::string trace;
  // Destroyed when the block is at the node, or will not be. May be null.
  std::shared_ptr<const void> promise = nullptr;

  uint64_t bytes() const { return selected == nullptr ? page.size() : selected->bytes(); }
};

// clang-format off
// ROW(kind, name, metric, labels, help)
#define CAIRN_PUSH_STATISTICS(ROW)                                                                 \
  ROW(kTotal, pushed_blocks, "cairn_worker_pushed_blocks_total", "result=stored",                  \
      "Blocks that are at the node now; blocks that it already had count too.")                    \
  ROW(kTotal, failed_blocks, "cairn_worker_pushed_blocks_total", "result=failed",                  \
      "Blocks that the node refused, or that could not reach it.")                                 \
  ROW(kTotal, dropped_blocks, "cairn_worker_pushed_blocks_total", "result=dropped",                \
      "Blocks that were never sent: queue full, pages needed, or shutdown.")                       \
  ROW(kTotal, pushed_bytes, "cairn_worker_pushed_bytes_total", "",                                 \
      "Bytes of the blocks that were stored.")                                                     \
  ROW(kNow, queued_blocks, "cairn_worker_push_queue_blocks", "",                                   \
      "Blocks that wait for their push.")                                                          \
  ROW(kNow, queued_bytes, "", "",                                                                  \
      "Bytes of these blocks, the batch under way included.")                                      \
  ROW(kTotal, device_blocks, "cairn_worker_device_encoded_blocks_total", "",                       \
      "Blocks that were encoded in the memory of a GPU to be pushed.")
// clang-format on

// Thread-safe. One thread pushes: it alone calls Run or RunOnce.
class PushQueue {
 public:
  struct Options {
    uint64_t max_bytes = 1ull << 30;                // Limit for pages that wait.
    uint32_t max_blocks = 16384;                    // Limit for blocks that wait.
    uint32_t batch_blocks = 8;                      // Copied and sent at a time.
    int niceness = 10;                              // The niceness of the pushing thread. 0 to 19.
    std::chrono::milliseconds push_deadline{5000};  // Limit for a batch.
  };

  // Totals since start unless said otherwise.
  struct Stats {
    CAIRN_PUSH_STATISTICS(CAIRN_STATISTIC_FIELD)

    Stats& operator+=(const Stats& other) {
      CAIRN_PUSH_STATISTICS(CAIRN_STATISTIC_ADD)
      return *this;
    }
  };

  // `client`, `clock`, `encoder` and `wakeup` must outlive the queue. `layout`: of all namespaces;
  // parts cover its whole rectangle. `encoder`: null where pages are in no device. `wakeup`:
  // notified when RunOnce has let go of pages, and when a batch is over; may be null.
  PushQueue(client::CacheClient& client, const Layout& layout, const Clock& clock,
            const Options& options, PageEncoder* encoder = nullptr, Wakeup* wakeup = nullptr);
  ~PushQueue();  // REQUIRES: nobody is in Run or RunOnce.

  // Queues blocks of one prompt, in order, for the namespace `fingerprint`, whose codec must
  // outlive the queue. Drops the blocks that do not fit, and their successors, because nobody could
  // match those.
  void Enqueue(const Digest& fingerprint, const KvCodec& codec, std::vector<ComputedBlock> blocks);

  // Calls are counted: pushing continues when every Pause has had its Resume.
  void Pause();
  void Resume();

  // Drops the waiting blocks, and returns when no page is referenced any more.
  void DropPending();

  // False when blocks were still queued or under way at `deadline`.
  bool WaitEmpty(TimePoint deadline);

  // Lets queued blocks go out until `deadline`, drops the rest, and waits for the batch under way:
  // at most push_deadline. Nothing is pushed afterwards, and Run returns. Idempotent.
  void Stop(TimePoint deadline);

  Stats GetStats() const;
  // Why the node did not take the last block that failed. OK: none has failed.
  Status last_failure() const;
  const Options& options() const { return options_; }

  // Pushes one batch. False: nothing may be pushed now.
  bool RunOnce();
  // Pushes whatever comes, until Stop.
  void Run();

 private:
  struct Item {
    Digest fingerprint;
    const KvCodec* codec;
    ComputedBlock block;
  };
  // The description of a batch for the node, without its pages.
  struct Batch {
    Digest fingerprint;
    std::string trace;
    std::vector<client::PartToWrite> parts;
    std::vector<std::shared_ptr<const void>> promises = {};
  };

  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !stopping_ && pauses_ == 0 && !queue_.empty();
  }
  // Moves up to batch_blocks items of one namespace out of the queue.
  std::vector<Item> TakeBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropQueued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NotifyPushed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Batch BatchOf(const std::vector<Item>& items) const;
  // Takes room, writes reserving_ there, commits. Counts what was pushed and what failed.
  Stats Push(const Batch& batch);
  // Counts what became of `parts`, and notes the first failure. `results`: one a part, or why none
  // was sent.
  template <typename Part>
  Stats Tally(const std::vector<Part>& parts, const Result<std::vector<Status>>& results,
              const std::string& trace);
  void Write(const std::vector<Item>& items, client::InPlacePush& push) const;
  // Encodes items into buffers, because only encoding tells their sizes, lets go of their pages and
  // sends.
  Stats PushEncoded(std::vector<Item> items);
  // Parts of those items that a device encodes; the others are empty.
  std::vector<std::vector<std::byte>> EncodedOnDevice(const std::vector<Item>& items) const;
  // Writes the bytes before the slices of a part.
  void WriteHeader(const ComputedBlock& block, const KvCodec& codec,
                   std::span<const uint64_t> lengths, std::span<const uint64_t> hashes,
                   std::vector<std::byte>* part) const;
  // Appends a layer's slice to `part`.
  Status AppendSlice(const ComputedBlock& block, const KvCodec& codec, int layer,
                     KvCodec::Scratch& scratch, std::vector<std::byte>* part) const;
  // A whole part; empty for a block that cannot be encoded.
  std::vector<std::byte> EncodedPart(const ComputedBlock& block, const KvCodec& codec,
                                     KvCodec::Scratch& scratch) const;

  // Constant after construction.
  client::CacheClient& client_;
  const Clock& clock_;
  const Options options_;
  const Layout layout_;
  const std::vector<uint64_t> layer_bytes_;  // The bytes of each layer of a page.
  PageEncoder* const encoder_;
  Wakeup* const wakeup_;

  mutable Mutex mu_;
  CondVar changed_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mu_);
  uint64_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t sending_blocks_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Item> reserving_ ABSL_GUARDED_BY(mu_);  // The batch, until its pages are read.
  bool copying_ ABSL_GUARDED_BY(mu_) = false;
  int pauses_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Stats totals_ ABSL_GUARDED_BY(mu_);
  Status last_failure_ ABSL_GUARDED_BY(mu_);
};

// Calls f(const Statistic&, value) for each row of the table, in its order.
template <typename Visitor>
void ForEachStatistic(const PushQueue::Stats& stats, Visitor&& f) {
  CAIRN_PUSH_STATISTICS(CAIRN_STATISTIC_VISIT)
}

}  // namespace cairn::worker
