#pragma once
// A selection at work on one segment of a prompt: shown the queries while the segment is prefilled,
// then asked what to keep.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cairn/kernels/thread_pool.h"
#include "kernels/selections/selection.h"
#include "model/model.h"
#include "services/worker/compute/transformer.h"

namespace cairn::worker {

// The facts about a model that selections need. Immutable.
class SelectionModel {
 public:
  explicit SelectionModel(const model::Model& model);  // Must outlive it.
  SelectionModel(const SelectionModel&) = delete;
  SelectionModel& operator=(const SelectionModel&) = delete;

  const selections::ModelShape& shape() const { return shape_; }
  const selections::ModelAccess& access() const { return access_; }

 private:
  const selections::ModelShape shape_;
  const std::vector<int32_t> separators_;
  selections::ModelAccess access_;
};

// Not thread-safe.
class SegmentSelection {
 public:
  // A selection of `tokens`, which begin at position `begin` of the sequence, in its first page.
  // All must outlive it, and the sequence must have capacity for them already.
  SegmentSelection(const selections::Selection& selection, const SelectionModel& model,
                   const KvSequence& sequence, std::span<const model::TokenId> tokens,
                   int64_t begin, kernels::ThreadPool& pool);

  // Whether Observe must see the queries of the segment, from `first_observed` on.
  bool observes() const { return first_observed_ < kv_.tokens; }
  int64_t first_observed() const { return kv_.first_position + first_observed_; }
  // Queries of any positions; those outside of what is observed are passed over.
  void Observe(const ChunkQueries& queries);

  // When the segment's KV is in the pages. Keeps everything, with a warning, where scores were not
  // finite.
  selections::KeptRows Select(const std::string& trace);

 private:
  const selections::Selection& selection_;
  const SelectionModel& model_;
  kernels::ThreadPool& pool_;
  std::vector<kernels::PagedKv> layers_;
  selections::SegmentKv kv_;
  int64_t first_observed_;  // Row.
  std::unique_ptr<selections::SelectionRun> run_;
};

}  // namespace cairn::worker
