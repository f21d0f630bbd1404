#pragma once
// Decodes over a context of which only a copy or an index and a working set are near.
//
// A layer of a step:
//
//   Expect  guessed query ─► units' logits ─► rows ─┬─ here: hit
//   or, without a guess, in Attend                  └─ missing ─► RowSource::Gather
//   Attend  what has come joins the working set
//           parts: rows of the copy that are not exact │ exact rows │ own tokens ─► merged
//
// With a copy, a row that is late is read from the copy, and nothing is ever waited for. Without
// one, the reader waits for what it has chosen, up to a deadline.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "cairn/kernels/backend.h"
#include "services/worker/compute/decode_reader.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/reading/near_memory.h"
#include "services/worker/reading/read_counters.h"
#include "services/worker/reading/read_policy.h"
#include "services/worker/reading/row_index.h"
#include "services/worker/reading/row_source.h"
#include "services/worker/reading/working_set.h"

namespace cairn::worker {

// Not thread-safe: see DecodeReader.
class ContextReader final : public DecodeReader {
 public:
  struct Setup {
    ReadPolicy policy;
    KvLayout kv;
    int32_t heads = 0;  // Heads of queries.
    int64_t rows = 0;   // Rows of the context.
    NearMemory near;
    std::unique_ptr<const RowIndex> index;
    std::unique_ptr<RowSource> source;
    const kernels::Backend* backend = nullptr;  // Runs inline; must outlive the reader.
    const Clock* clock = nullptr;               // Must outlive the reader.
    // For rows that a policy without a copy waits for.
    Duration wait = std::chrono::seconds(5);
  };
  explicit ContextReader(Setup setup);
  ~ContextReader() override;

  // The first rows, which always stay: [rows][head_dim] of K and V. Before the first step.
  void AddSink(int layer, int head, int32_t row, const std::byte* k, const std::byte* v);

  Guess guess() const override { return s_.policy.query; }
  void BeginStep() override;
  void Expect(int layer, const float* q, kernels::ThreadPool& pool) override;
  // UNAVAILABLE: a policy without a copy did not get the rows that it had chosen.
  Status Attend(int layer, const float* q, const kernels::PagedKv& own, int64_t own_tokens,
                float* out, kernels::ThreadPool& pool) override;

  void CountIndex(bool fetched, bool stored) {
    counters_.fetched_indexes = fetched ? 1 : 0;
    counters_.stored_indexes = stored ? 1 : 0;
  }
  const ReadCounters& counters() const { return counters_; }
  const NearMemory& near() const { return s_.near; }
  int64_t rows() const { return s_.rows; }
  const ReadPolicy& policy() const { return s_.policy; }
  // The last choice of this layer and head. Ascending.
  std::span<const int32_t> chosen(int layer, int head) const { return HeadOf(layer, head).chosen; }

 private:
  struct Head {
    WorkingSet set;
    std::vector<int32_t> chosen;
    std::vector<int64_t> read_slots;  // Without a copy: of the rows to attend to.
  };
  struct Layer {
    bool expected = false;  // Chosen already in this step.
    std::shared_ptr<RowGather> gather;
    std::vector<RowRequest::Head> asked;  // The heads that the gather asked for.
    int staging = -1;
  };

  // The parts of a layer's attention: how many of each kind, for every head.
  struct Parts {
    int64_t copy = 0, exact = 0, own = 0;
    int64_t all() const { return copy + exact + own; }
  };

  Head& HeadOf(int layer, int head) {
    return heads_[static_cast<size_t>(layer) * static_cast<size_t>(s_.kv.kv_heads) +
                  static_cast<size_t>(head)];
  }
  const Head& HeadOf(int layer, int head) const {
    return const_cast<ContextReader*>(this)->HeadOf(layer, head);
  }
  float* StoredLogitsOf(int head) {
    return stored_logits_.data() + static_cast<int64_t>(head) * group_ * stored_;
  }
  float* LogitsOf(int head) {
    return logits_.data() + static_cast<int64_t>(head) * group_ * units_;
  }
  std::byte* Scratch(int thread) {
    return scratch_.data() + static_cast<size_t>(thread) * scratch_bytes_;
  }

  void Prepare(kernels::ThreadPool& pool);
  // Logits of all units with the query, for all heads.
  void Rank(int layer, const float* q, kernels::ThreadPool& pool);
  // Gives each unit the logit of the stored row that it shares with others.
  void Spread(int layer, int head);
  // From the logits, the rows of each head; then gathers those that are missing.
  void Choose(int layer, kernels::ThreadPool& pool);
  void ChooseHead(int layer, int head, int thread);
  // Rows of chosen units whose logits are within alpha of the largest.
  void DropFaintRows(int head, std::vector<int32_t>* rows) const;
  // The most important of the rows that are missing, as many as a step may read of a layer.
  void Limit(int head, std::vector<int32_t>* missing) const;
  void Gather(int layer);
  // Takes what has come into the working sets.
  void Settle(int layer);
  Status WaitForRows(int layer);
  // Which rows are attended to exactly, and what was late.
  void TakeStock(int layer);
  void AttendPart(int layer, int head, int64_t part, const Parts& parts, const float* q,
                  const kernels::PagedKv& own, int64_t own_tokens, int thread);
  void AttendCopy(int layer, int head, int64_t part, const kernels::AttendRowsArgs& to);
  void AttendRows(const kernels::PagedKv& kv, int64_t begin, int64_t end, int head, const float* q,
                  int64_t place, int thread);

  Setup s_;
  const int64_t group_;
  const int64_t units_;
  const int64_t stored_;  // Rows of the index, which units may share.
  const size_t row_bytes_;
  const float scale_;
  const kernels::ReadingKernels& reading_;
  const kernels::ForwardKernels& forward_;
  kernels::InlineStream stream_;

  std::vector<Head> heads_;  // By layer and head.
  std::vector<Layer> layers_;
  ReadCounters counters_;

  std::vector<float> logits_;                    // [KV heads][group][units]
  std::vector<float> stored_logits_;             // [KV heads][group][stored], if units share rows.
  std::vector<float> scores_;                    // [KV heads][units]
  std::vector<std::vector<std::byte>> compact_;  // By KV head, without a copy: exact rows.
  std::vector<float> part_acc_, part_max_, part_sum_;
  size_t scratch_bytes_ = 0;
  std::vector<std::byte> scratch_;
  std::vector<std::byte> staging_;
  std::vector<bool> staging_free_;
};

}  // namespace cairn::worker
