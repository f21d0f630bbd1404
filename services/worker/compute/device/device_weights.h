#pragma once
// A model's weights in the memory of a device: matrices in bfloat16, norms in float32, the
// embedding as it is in the file. Immutable.

#include <memory>
#include <vector>

#include "cairn/common/status.h"
#include "cairn/kernels/batch/forward_kernels.h"
#include "common/device/device.h"
#include "model/model.h"

namespace cairn::worker {

// [outputs][cols], bfloat16.
struct DeviceMatrix {
  const uint16_t* w = nullptr;
  int64_t outputs = 0;
  int64_t cols = 0;
};

struct DeviceLayer {
  const float* attn_norm = nullptr;
  const float* ffn_norm = nullptr;
  DeviceMatrix qkv;  // Rows of q, k and v after each other; q and k in half-split order.
  DeviceMatrix o;
  DeviceMatrix gate_up;  // Rows of gate, then those of up.
  DeviceMatrix down;
};

class DeviceWeights {
 public:
  // Uploads and dequantises everything, and waits for that. `positions`: rows of the tables of
  // cosines and sines. RESOURCE_EXHAUSTED names the bytes wanted and those free.
  static Result<std::unique_ptr<DeviceWeights>> Load(const model::Model& model, int64_t positions,
                                                     const std::shared_ptr<device::Device>& device,
                                                     const kernels::batch::ForwardKernels& kernels);

  const DeviceLayer& layer(int i) const { return layers_[static_cast<size_t>(i)]; }
  const DeviceMatrix& output() const { return output_; }
  const float* output_norm() const { return output_norm_; }
  const std::byte* embedding() const { return embedding_; }
  const float* cosine() const { return cosine_; }  // [positions][rope_dim / 2]
  const float* sine() const { return sine_; }
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  class Loader;
  DeviceWeights() = default;

  device::DeviceMemory memory_;
  std::vector<DeviceLayer> layers_;
  DeviceMatrix output_;
  const float* output_norm_ = nullptr;
  const std::byte* embedding_ = nullptr;
  const float* cosine_ = nullptr;
  const float* sine_ = nullptr;
};

// Allocates, and names in the error what for, how much was wanted and how much is free.
Result<device::DeviceMemory> AllocateFor(const char* what, uint64_t bytes,
                                         const std::shared_ptr<device::Device>& device);

}  // namespace cairn::worker
