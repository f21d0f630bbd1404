#pragma once
// The forward pass of a Llama-family model, on the CPU or on a device.
//
// Exactness. A row's result depends on its own tokens only: not on what else runs in the call, not
// on the number of threads, not on whether earlier KV was computed here or came from a cache. For
// that, the KV of a chunk is rounded to binary16 before attention reads it, every sum has a fixed
// order, and a prefill may be cut into chunks at block boundaries anywhere. Prefill and decode use
// different kernels, so KV written by a decode step differs in its last bits from KV of the same
// token written by a prefill: only the latter is exact lineage.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "cairn/common/status.h"
#include "cairn/kernels/backend.h"
#include "cairn/kernels/thread_pool.h"
#include "model/model.h"
#include "services/worker/compute/decode_reader.h"
#include "services/worker/compute/page_encoder.h"
#include "services/worker/compute/slice_loader.h"
#include "services/worker/kv/earlier_kv.h"
#include "services/worker/kv/kv_pool.h"

namespace cairn::device {
class Device;
}  // namespace cairn::device

namespace cairn::worker {

enum class Arithmetic {
  kFast,     // Prefill multiplies in bfloat16 if the machine can, and sums in float32.
  kFloat32,  // float32 everywhere. Only KV is rounded, to binary16.
};

enum class Phase {
  kPrefill,  // Prompt tokens, from a block boundary on.
  kDecode,   // One token that was just generated.
};

// Queries of some tokens of a chunk in one layer, after RoPE: [rows][heads][head_dim] float32, rows
// `stride` numbers apart.
struct ChunkQueries {
  int layer = 0;
  int64_t first_position = 0;
  int64_t rows = 0;
  const float* q = nullptr;
  int64_t stride = 0;
};

// Work on one sequence in one forward pass.
struct SequenceChunk {
  // Must have capacity for the new tokens (KvSequence::Reserve). On success its length has grown by
  // tokens.size(); on error it is unchanged.
  KvSequence* sequence = nullptr;
  // kPrefill: 1..max_rows() tokens, with sequence->length() at a page's first token; up to
  // max_wide_rows() when it is the call's only chunk. kDecode: one.
  std::span<const int32_t> tokens;
  Phase phase = Phase::kPrefill;
  // The tokens before the sequence's base. Null: the sequence begins at 0, or with a prefix. With
  // it, kPrefill has at most max_rows() tokens.
  EarlierKv* earlier = nullptr;
  // Where to write the logits of the last token (vocab floats). Null: they are not wanted.
  float* logits = nullptr;
  // The logits of every token of the chunk instead: [tokens.size()][vocab].
  bool logits_of_every_token = false;
  // Called on the calling thread, in order of layers, before layer `layer` reads the KV of earlier
  // tokens. May wait until that has arrived; an error ends the forward pass with it.
  std::function<Status(int layer)> before_layer = nullptr;
  // Called on the calling thread when all of the chunk's KV of layer `layer` is in its pages.
  std::function<void(int layer)> after_layer = nullptr;
  // Called on the calling thread with the chunk's queries, in order of layers and within a layer of
  // positions, when the keys and values of these positions are in the pages. May use thread_pool().
  std::function<void(const ChunkQueries& queries)> observe = nullptr;
  // Reads the tokens before sequence->base(), where these lie elsewhere (KvSequence::StartAt).
  // kDecode only.
  DecodeReader* reader = nullptr;
};

class Transformer {
 public:
  struct Options {
    Arithmetic arithmetic = Arithmetic::kFast;
    // Threads that compute, the caller of Forward included. 0: one per CPU.
    int threads = 0;
    // Tokens per KV block: 16..256.
    int32_t block_tokens = 64;
    // Most tokens that a sequence may have. 0: the model's context.
    int32_t max_context = 0;
    // The kernels to use; must run inline. Null: those of the best instruction set that this
    // machine has.
    const kernels::Backend* backend = nullptr;
    // Compute there, in the device's arithmetic. Null: on the CPU.
    std::shared_ptr<device::Device> device = nullptr;
    // Memory of the device for the pages of the sequences of one call.
    int64_t device_kv_bytes = int64_t{1} << 30;
    // On a device: note the launches of decode steps, and do them again by one call each.
    bool device_graphs = true;
  };

  // Prepares the weights. The model must outlive the transformer. INVALID_ARGUMENT, which names the
  // option or hyper-parameter that is not possible.
  static Result<std::unique_ptr<Transformer>> Create(const model::Model& model,
                                                     const Options& options);
  virtual ~Transformer() = default;
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  // Computes all chunks, each of a different sequence. Not thread-safe: one call at a time.
  // INVALID_ARGUMENT names the chunk and the field that are not valid. OUT_OF_RANGE: beyond
  // max_context. Any other error is that of a before_layer callback.
  virtual Status Forward(std::span<const SequenceChunk> chunks) = 0;

  // The most tokens that one call may compute in total (including decode steps). A multiple of
  // block_tokens. Longer chunks are faster; the result is the same to the last bit.
  virtual int64_t max_rows() const = 0;
  // Most tokens of a wide chunk: it goes through the model layer by layer as a whole, so that its
  // before_layer waits once for each layer, not once for each max_rows() tokens.
  virtual int64_t max_wide_rows() const = 0;
  // The layout of the KV it reads and writes: what the pool must have.
  virtual const KvLayout& kv_layout() const = 0;
  virtual int32_t vocab() const = 0;
  virtual int threads() const = 0;
  // For work between forward passes and in their callbacks. Only the thread that calls Forward may
  // use it.
  virtual kernels::ThreadPool& thread_pool() = 0;
  // Names what decides the last bits of a result: arithmetic mode, kernel family, version. KV may
  // be shared only between workers with equal ids. "fast-avx512-amx-1".
  virtual const std::string& numerics_id() const = 0;
  // Brings what is fetched to where Forward computes. Null: there is no other place than the pages
  // of the pool. Lives as long as this.
  virtual SliceLoader* slice_loader() { return nullptr; }

  // Encodes pages there, to be pushed. Null: pages are encoded where the pool is. Lives as long as
  // this.
  virtual PageEncoder* page_encoder() { return nullptr; }

  // Memory of the host.
  struct Memory {
    uint64_t weights = 0;
    uint64_t compute = 0;  // Activations and scratch memory, at most.
  };
  virtual Memory memory() const { return {}; }

  // Counts of decode steps on a device, totals since start.
  struct GraphStats {
    uint64_t noted = 0;     // Graphs that were made.
    uint64_t launches = 0;  // Steps that a graph did.
    uint64_t failures = 0;  // Graphs that could not be made; after one, none is tried any more.
  };
  // Thread-safe. All zero on a CPU.
  virtual GraphStats graph_stats() const { return {}; }

 protected:
  Transformer() = default;
};

}  // namespace cairn::worker
