#pragma once
// One pass of a list of chunks through all layers on a device. DeviceTransformer has already
// checked the input.
//
//   compute:  embedding ─► per layer: q, k, v ─► pages ─► attention ─► feed-forward ─► logits
//   uploads:               earlier pages that the device lacks ──^
//   downloads:                                   new keys and values ─► the host's pages
//
// The three streams wait for each other on the device. The host waits in before_layer callbacks,
// where more than a few layers' downloads are under way, for logits, and at the end.
//
// A pass in which all sequences decode, and nobody waits or looks between layers, is launched as a
// whole (decode_graphs.h): earlier pages come before it, and downloads of all layers behind it.
//
// Not thread-safe.

#include <memory>
#include <span>
#include <vector>

#include "cairn/common/status.h"
#include "cairn/kernels/batch/forward_kernels.h"
#include "common/device/device.h"
#include "common/device/launched.h"
#include "services/worker/compute/device/decode_graphs.h"
#include "services/worker/compute/device/device_run.h"
#include "services/worker/compute/device/device_weights.h"
#include "services/worker/compute/device/kv_downloads.h"
#include "services/worker/compute/device/kv_mirror.h"
#include "services/worker/compute/device/kv_uploads.h"
#include "services/worker/compute/device/pass_lists.h"
#include "services/worker/compute/device/prefix_mirror.h"

namespace cairn::worker {

class DevicePass {
 public:
  // References must outlive the pass.
  struct Setup {
    const model::Model& model;
    const DeviceWeights& weights;
    const kernels::batch::ForwardKernels& kernels;
    std::shared_ptr<device::Device> device;
    KvLayout kv;
    int64_t max_rows;
    KvMirror& mirror;
    bool graphs = true;  // CUDA graphs of decode steps.
    // To gather rows that go back. Null: the device's library has none.
    const kernels::batch::SliceTable* slices = nullptr;
  };
  static Result<std::unique_ptr<DevicePass>> Create(const Setup& setup);

  // When it returns nothing is under way, also after an error.
  Status Run(std::span<const SequenceChunk> chunks);
  // Thread-safe.
  Transformer::GraphStats graph_stats() const { return graphs_.GetStats(); }

 private:
  explicit DevicePass(const Setup& setup);
  Status Allocate(const kernels::batch::SliceTable* slices);
  Status RunLayers(std::span<const SequenceChunk> chunks);
  // Prefill chunks first.
  void Arrange(std::span<const SequenceChunk> chunks);
  Status HoldPages();
  Status MakeLists();
  // Whether the whole pass may be launched at once.
  bool IsPlainDecode() const;
  Status Decode();
  // The kernels of such a pass, logits included, and nothing else.
  Status LaunchDecode();
  Status Embed();
  Status Layer(int layer);
  // The parts of a layer: queries, keys and values; those into the pages; all that comes behind.
  Status Project(int layer);
  Status Store(int layer);
  Status Finish(int layer);
  // Adds what the device lacks of a layer to the uploads.
  Status AddEarlier(int layer);
  Status Attend(int layer);
  Status FeedForward(const DeviceLayer& w);
  // y (+)= a w^T of all rows: those of prompts, then those that decode, each with its own kernel.
  Status Product(const uint16_t* a, const DeviceMatrix& w, float* y, bool accumulate);
  Status Normalise(const float* weight, uint16_t* y);
  Status Logits();
  // `count` of the wanted ones from `first` on: computed, copied to the host, taken from there.
  Status ComputeLogits(int64_t first, int64_t count);
  Status FetchLogits(int64_t count);
  Status TakeLogits(int64_t first, int64_t count);
  // Waits for all that was issued.
  Status Drain();
  kernels::batch::KvForm FormOf(int layer) const;
  Status Launched(const char* what, int error) const {
    return device::Launched(what, error, *device_);
  }

  const model::Hyperparameters& hp_;
  const model::Tensor& embedding_;
  const DeviceWeights& weights_;
  const kernels::batch::ForwardKernels& kernels_;
  const std::shared_ptr<device::Device> device_;
  const KvLayout kv_;
  const int64_t max_rows_;
  KvMirror& mirror_;
  PrefixMirror prefixes_;
  PassLists lists_;
  DecodeGraphs graphs_;
  std::unique_ptr<KvDownloads> downloads_;
  std::unique_ptr<KvUploads> uploads_;
  device::Stream compute_;
  device::Event ended_, logits_ready_;

  // Activations: [max_rows][..]
  device::DeviceMemory activations_;
  float* x_ = nullptr;               // [hidden]
  uint16_t* normed_ = nullptr;       // [hidden]
  float* qkv_ = nullptr;             // [(heads + 2 kv_heads) * head_dim]
  uint16_t* q_ = nullptr;            // [heads * head_dim]
  uint16_t* attended_ = nullptr;     // [heads * head_dim]
  float* gate_up_ = nullptr;         // [2 * ffn]
  uint16_t* activated_ = nullptr;    // [ffn]
  uint16_t* last_normed_ = nullptr;  // [kLogitsRows][hidden]
  float* logits_ = nullptr;          // [kLogitsRows][logits_stride_]
  int64_t logits_stride_ = 0;
  device::PinnedMemory host_logits_;
  GrowingMemory scratch_;  // Scratch memory of attention.

  // The runs of the current pass.
  std::vector<DeviceRun> runs_;
  int64_t rows_ = 0;
  int64_t prompt_rows_ = 0;
  int64_t prompts_ = 0;  // Runs.
  int64_t splits_ = 0;   // The splits of attention, as launched.
  struct WantedLogits {
    int32_t row = 0;
    float* to = nullptr;
  };
  std::vector<WantedLogits> wanted_;
};

}  // namespace cairn::worker
