#pragma once
// One pass of a list of chunks through all layers. Transformer has already checked the input.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cairn/common/status.h"
#include "cairn/kernels/forward_kernels.h"
#include "cairn/kernels/stream.h"
#include "cairn/kernels/thread_pool.h"
#include "services/worker/compute/packed_weights.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/compute/workspace.h"

namespace cairn::worker {

class ForwardPass {
 public:
  // References must outlive the pass. The kernels are those of a backend that runs inline.
  struct Setup {
    const model::Model& model;
    const PackedWeights& weights;
    const kernels::ForwardKernels& kernels;
    bool fast;
    KvLayout kv;
    int64_t max_rows;
  };

  ForwardPass(const Setup& setup, kernels::ThreadPool* pool);

  Status Run(std::span<const SequenceChunk> chunks);

  // Memory of the host that it takes at most, with wide chunks of `wide_rows` rows.
  size_t MostBytes(int64_t wide_rows) const {
    return ws_.bytes() + WideRows::Bytes(hp_, wide_rows);
  }

 private:
  // A chunk's rows in the workspace. Rows of prefill chunks come first. Those of decode chunks are
  // in an order in which sequences that begin with the same pages are neighbours.
  struct Rows {
    const SequenceChunk* chunk;
    int64_t first_row;
    int64_t rows;
    int64_t first_token;  // The first token of the chunk.
    int64_t first_position;
  };
  // The rows that go through a layer at once: at most max_rows. A wide chunk has several slabs,
  // which take turns in each layer. They use the workspace one after the other, and each has its
  // own residual stream.
  struct Slab {
    std::vector<Rows> runs;
    int64_t rows = 0;
    int64_t prefill_rows = 0;
    float* x = nullptr;  // [rows][hidden]
    float* cosine = nullptr;
    float* sine = nullptr;
  };
  // An output of a product: y (+)= w * input, row stride in numbers.
  struct Output {
    const kernels::PackedMatrix* w;
    float* y;
    int64_t y_stride;
  };

  void Arrange(std::span<const SequenceChunk> chunks);
  void ArrangeWide(const SequenceChunk& chunk);
  void Select(size_t slab);
  Status Layer(int layer, bool first_slab, bool last_slab);
  void Embed();
  // Normalises x into ws_.normed and prepares it as an input.
  void Normalise(const float* x, const float* weight, int64_t rows);
  // Makes the forms of rows [begin, end) that the products will read.
  void PrepareRows(MatrixInput* input, int64_t begin, int64_t end);
  // Computes panels [begin, end) of one product for all rows.
  void Product(const Output& out, MatrixInput* input, int64_t begin, int64_t end, bool accumulate,
               int thread);
  void Products(std::span<const Output> outputs, MatrixInput* input, bool accumulate);
  void RotateAndStore(int layer);
  // Works on rows [begin, end) of a run.
  void RotateAndStoreRows(const Rows& run, int64_t begin, int64_t end, int layer);
  // Prefill: some rows of a run for one KV head. Decode: some keys of a run for one KV head, those
  // of the prefix first.
  struct AttentionPiece {
    const Rows* run;
    int64_t begin;
    int64_t count;
    int64_t head;
    int64_t part = 0;     // Decode: of the run, from 0 on.
    bool prefix = false;  // Decode: of the prefix's rows.
    int64_t sharers = 1;  // Decode: runs, from `run` on, that hold these keys in the same pages.
    // Prefill of a chunk with EarlierKv: where its sums are kept between windows. -1: it has none.
    int64_t kept = -1;
  };
  // The bytes of a piece. Two threads never share a cache line.
  size_t KeptBytes() const {
    const size_t bytes = kernels::AttentionStateBytes(Workspace::kAttentionRows,
                                                      hp_.heads / hp_.kv_heads, hp_.head_dim);
    return (bytes + 63) / 64 * 64;
  }
  std::byte* KeptState(const AttentionPiece& piece) const {
    return kept_state_.get() + static_cast<size_t>(piece.kept) * KeptBytes();
  }
  // Attention of all rows: plans the pieces that threads take, runs them, and then merges the parts
  // of decode rows.
  Status Attend(int layer);
  // The part of it that reads a run's EarlierKv, window by window.
  Status AttendEarlier(const Rows& run, std::span<const AttentionPiece> pieces, int layer);
  // Attends to the window's keys, the first of which is token `done`.
  void AttendWindow(const AttentionPiece& piece, const EarlierKv::Window& window, bool first,
                    int thread);
  void AttendWindowPart(const Rows& run, const EarlierKv::Window& window, int64_t done, int64_t i,
                        int thread);
  std::vector<AttentionPiece> PlanAttention(int layer);
  void PlanPrefill(const Rows& run, std::vector<AttentionPiece>* pieces);
  void PlanDecode(int layer, std::vector<AttentionPiece>* pieces) const;
  // Runs, from decode run `first` on, whose next kSplitTokens tokens are in the same pages. The
  // tokens before, `planned` of each run, are in pieces already.
  int64_t SharersOf(std::span<const Rows> decodes, size_t first,
                    std::span<const int64_t> planned) const;
  void AttendPrefill(const AttentionPiece& piece, int layer, int thread);
  void AttendDecodePart(const AttentionPiece& piece, int layer, int thread);
  void MergeDecodeParts(const Rows& run, int layer);
  // Attention of the decode rows whose first tokens lie elsewhere.
  Status AttendWithReaders(int layer);
  // Tells readers that want it now what the queries of `layer` will probably be, by the residual
  // stream as it is.
  void GuessQueries(int layer, DecodeReader::Guess now);
  void FeedForward(const PackedLayer& w);
  // A row whose logits somebody wants.
  struct LogitsRow {
    int64_t row;
    float* logits;  // [vocab]
  };
  void Logits();
  // Computes the logits of at most Workspace::kLogitsRows rows.
  void RowLogits(std::span<const LogitsRow> rows);

  // The keys that a decoded token attends to in a layer.
  struct DecodeSpan {
    int64_t prefix_rows = 0;  // Prefix rows of the head with the most; or the tokens of EarlierKv.
    int64_t tokens = 0;       // In the pages.
    int64_t parts() const {
      return (prefix_rows + Workspace::kSplitTokens - 1) / Workspace::kSplitTokens +
             (tokens + Workspace::kSplitTokens - 1) / Workspace::kSplitTokens;
    }
  };
  DecodeSpan SpanOf(const Rows& run, int layer) const;
  std::span<const Rows> DecodeRuns() const;
  // Where the results of a run's part begin, in parts.
  int64_t PartPlace(const Rows& run, int64_t part) const {
    return (run.first_row - prefill_rows_) * most_parts_ + part;
  }
  int64_t PanelsPerPiece(int64_t panels) const;

  const model::Hyperparameters& hp_;
  const model::Tensor& embedding_;
  const PackedWeights& weights_;
  const kernels::ForwardKernels& kernels_;
  kernels::InlineStream stream_;  // All threads of the pool use it.
  const bool bf16_gemm_;
  const bool bf16_attention_;
  const bool integer_decode_;
  const KvLayout kv_;
  const int64_t max_rows_;
  kernels::ThreadPool& pool_;
  Workspace ws_;
  std::unique_ptr<WideRows> wide_;  // Rows of the widest chunk so far; null before the first.
  int64_t wide_rows_ = 0;
  // A row's guessed query and what it is made of; null before the first.
  std::unique_ptr<MatrixInput> guess_input_;
  std::vector<float> guess_q_;

  // The slabs of the current call.
  std::vector<Slab> slabs_;
  // The runs of the selected slab.
  std::span<const Rows> runs_;
  float* x_ = nullptr;
  float* cosine_ = nullptr;
  float* sine_ = nullptr;
  int64_t rows_ = 0;
  int64_t prefill_rows_ = 0;
  int64_t most_parts_ = 0;  // The most parts of a decode run, in the current layer.
  // The state of pieces that go on where they ended, in the current layer.
  AlignedArray<std::byte> kept_state_;
  int64_t kept_ = 0, kept_room_ = 0;  // Pieces.
};

}  // namespace cairn::worker
