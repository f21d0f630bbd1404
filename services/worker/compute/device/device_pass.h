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
// Not thread-safe.

#include <memory>
#include <span>
#include <vector>

#include "cairn/common/status.h"
#include "cairn/kernels/batch/forward_kernels.h"
#include "common/device/device.h"
#include "services/worker/compute/device/device_run.h"
#include "services/worker/compute/device/device_weights.h"
#include "services/worker/compute/device/kv_downloads.h"
#include "services/worker/compute/device/kv_mirror.h"
#include "services/worker/compute/device/kv_uploads.h"
#include "services/worker/compute/device/prefix_mirror.h"

namespace cairn::worker {

class DevicePass {
 public:
  // References must outlive the pass.
  struct Setup {
    const Model& model;
    const DeviceWeights& weights;
    const kernels::batch::ForwardKernels& kernels;
    std::shared_ptr<device::Device> device;
    KvLayout kv;
    int64_t max_rows;
    KvMirror& mirror;
  };
  static Result<std::unique_ptr<DevicePass>> Create(const Setup& setup);

  // When it returns nothing is under way, also after an error.
  Status Run(std::span<const SequenceChunk> chunks);

 private:
  // Memory that grows with what passes need. Nothing uses it between passes.
  struct Growing {
    device::DeviceMemory memory;
    Status Grow(const char* what, uint64_t bytes, const std::shared_ptr<device::Device>& device);
  };

  explicit DevicePass(const Setup& setup);
  Status Allocate();
  Status RunLayers(std::span<const SequenceChunk> chunks);
  // Prefill chunks first.
  void Arrange(std::span<const SequenceChunk> chunks);
  Status HoldPages();
  // Writes tokens, places, tables and sequences, and copies them to the device.
  Status MakeLists();
  template <typename T>
  const T* AddList(const std::vector<T>& list);
  Status Embed();
  Status Layer(int layer);
  Status UploadEarlier(int layer);
  Status Attend(int layer);
  Status FeedForward(const DeviceLayer& w);
  // y (+)= a w^T of all rows: those of prompts, then those that decode, each with its own kernel.
  Status Product(const uint16_t* a, const DeviceMatrix& w, float* y, bool accumulate);
  Status Normalise(const float* weight, uint16_t* y);
  Status Logits();
  // Waits for all that was issued.
  Status Drain();
  kernels::batch::KvForm FormOf(int layer) const;
  Status Launched(const char* what, int error) const;

  const Hyperparameters& hp_;
  const Tensor& embedding_;
  const DeviceWeights& weights_;
  const kernels::batch::ForwardKernels& kernels_;
  const std::shared_ptr<device::Device> device_;
  const KvLayout kv_;
  const int64_t max_rows_;
  KvMirror& mirror_;
  PrefixMirror prefixes_;
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
  Growing lists_, scratch_;
  device::PinnedMemory host_lists_;
  size_t lists_used_ = 0;

  // Of the current pass.
  std::vector<DeviceRun> runs_;
  int64_t rows_ = 0;
  int64_t prompt_rows_ = 0;
  int64_t prompts_ = 0;  // Runs.
  const int32_t* tokens_ = nullptr;
  const kernels::batch::KvPlace* places_ = nullptr;
  const kernels::batch::SequenceKv* sequences_ = nullptr;  // Of the runs that decode.
  const kernels::batch::PromptChunk* chunks_ = nullptr;
  const int32_t* logits_rows_ = nullptr;
  int64_t most_splits_ = 0;
  struct WantedLogits {
    int32_t row = 0;
    float* to = nullptr;
  };
  std::vector<WantedLogits> wanted_;
};

}  // namespace cairn::worker
