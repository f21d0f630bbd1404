#pragma once
// Computes the part of a prompt whose KV is not there yet, chunk by chunk, and learns its speed.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "model/tokenizer.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/session/cost_model.h"

namespace cairn::worker {

// Not thread-safe.
class Prefiller {
 public:
  // Both must outlive it.
  Prefiller(Transformer& transformer, const Clock& clock);

  struct Job {
    std::span<const model::TokenId> tokens;  // The prompt, up to where to compute.
    KvSequence* sequence = nullptr;          // Holds the KV of a prefix of whole blocks.
    float* logits = nullptr;  // The logits of the last token, vocab floats; may be null.
    // Tokens per chunk, rounded down to whole blocks, at least one. 0: as many as the transformer
    // takes. Results do not depend on it.
    int64_t chunk_tokens = 0;
    // Passed to the first chunk only (later ones read KV that is all there), which is then a wide
    // one:
    // all that is left, if the transformer takes so much.
    std::function<Status(int layer)> before_layer;
    std::function<void(const ChunkQueries&)> observe = nullptr;  // As in SequenceChunk.
    // Something else runs at the same time: the job says nothing about the speed.
    bool disturbed = false;
    // Asked before each chunk; true stops the job with CANCELLED. Tokens that were computed stay.
    std::function<bool()> stop;
    // Where to note how long each block took; may be null. See Measure.
    std::vector<double>* block_seconds = nullptr;
  };

  // Computes from sequence->length() to the end of the prompt. REQUIRES: capacity for all tokens,
  // length at a block boundary and before the last token. Errors: those of Transformer::Forward,
  // CANCELLED. On error the sequence's length says what is done.
  Status Run(const Job& job);

  // Call after each forward pass over a sequence with lent pages. OK: what it computed is right, or
  // was made so. ABORTED: the node took lent memory back meanwhile. The pages are computed again
  // and are the sequence's own; the pass must be repeated. Otherwise the error of Run. `prompt`: at
  // least the tokens of all lent pages.
  Status CheckLoans(std::span<const model::TokenId> prompt, KvSequence& sequence);

  // Learns from a chunk that took `seconds`. `disturbed`: as in Job. `block_seconds` may be null;
  // it has one entry for each block of the prompt and gets the seconds that each block of the chunk
  // took. Entries of blocks that were not computed stay 0.
  void Measure(int64_t begin, int64_t count, double seconds, bool disturbed,
               std::vector<double>* block_seconds);
  // By the chunks so far, recent ones weighing more; 0 before the first whole block.
  double tokens_per_second() const { return tokens_per_second_; }
  // The same, by position and length of a chunk.
  const PrefillModel& model() const { return model_; }
  // The tokens of a chunk, when Job::chunk_tokens is 0.
  int64_t chunk_tokens() const { return transformer_.max_rows(); }

 private:
  Transformer& transformer_;
  const Clock& clock_;
  const int64_t block_tokens_;
  double tokens_per_second_ = 0;
  PrefillModel model_;
};

}  // namespace cairn::worker
