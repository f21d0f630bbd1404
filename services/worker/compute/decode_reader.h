#pragma once
// How decode steps of a sequence attend to first tokens whose KV is not in its pages
// (KvSequence::StartAt): the seam between the forward pass and what reads a context by rows
// (methods/reading).
//
// One step calls, in this order, BeginStep, and then for each layer Expect (at most once, if
// guess() asks for it, while an earlier layer is computed) and Attend.

#include <cstdint>

#include "cairn/common/status.h"
#include "cairn/kernels/attention.h"
#include "cairn/kernels/thread_pool.h"
#include "services/worker/compute/read_counters.h"

namespace cairn::worker {

// Belongs to one sequence. Called by the thread that computes the forward pass, one call at a time.
class DecodeReader {
 public:
  virtual ~DecodeReader() = default;

  // The hidden state from which the forward pass guesses the query of the next layer.
  enum class Guess : uint8_t {
    kNone,
    kAfterAttention,  // In the layer before, between its attention and its feed-forward network.
    kInput,           // In the layer before, where it begins.
  };
  virtual Guess guess() const = 0;

  virtual void BeginStep() = 0;
  // `q`: what the query of `layer` will probably be, after RoPE, [heads][head_dim].
  virtual void Expect(int layer, const float* q, kernels::ThreadPool& pool) = 0;
  // Writes attention over the sequence's first tokens and over its own: tokens [0, own_tokens) of
  // `own`. `q`, `out`: [heads][head_dim]. An error ends the forward pass with it.
  virtual Status Attend(int layer, const float* q, const kernels::PagedKv& own, int64_t own_tokens,
                        float* out, kernels::ThreadPool& pool) = 0;

  // Of all steps so far.
  virtual ReadCounters counters() const = 0;
};

}  // namespace cairn::worker
