#include "services/worker/compute/device/device_weights.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

#include "common/device/launched.h"
#include "services/worker/compute/device/arena.h"
#include "services/worker/compute/device/device_wait.h"

namespace cairn::worker {

using kernels::batch::DequantiseArgs;
using kernels::batch::ForwardKernels;

Result<device::DeviceMemory> AllocateFor(const char* what, uint64_t bytes,
                                         const std::shared_ptr<device::Device>& device) {
  auto memory = device->Allocate(bytes, /*exportable=*/false);
  if (memory.ok() || memory.status().code() != StatusCode::kResourceExhausted) return memory;
  const auto state = device->GetMemoryState();
  return Errorf(StatusCode::kResourceExhausted,
                "{} on device {}: {} bytes wanted, {} free; choose a smaller model, or give the KV "
                "pool less",
                what, device->info().ordinal, bytes, state.ok() ? state->free_bytes : 0);
}

// Takes the places of all tensors, then fills them, one after the other on one stream. Host memory
// that copies read stays until the end.
class DeviceWeights::Loader {
 public:
  Loader(const model::Model& model, int64_t positions, std::shared_ptr<device::Device> device,
         const ForwardKernels& kernels)
      : model_(model),
        hp_(model.hp()),
        positions_(positions),
        device_(std::move(device)),
        kernels_(kernels) {}

  Result<std::unique_ptr<DeviceWeights>> Run() {
    Plan();
    CAIRN_ASSIGN_OR_RETURN(weights_->memory_,
                           AllocateFor("the model's weights", plan_.bytes(), device_));
    CAIRN_ASSIGN_OR_RETURN(staging_,
                           AllocateFor("loading the weights", staging_plan_.bytes(), device_));
    CAIRN_ASSIGN_OR_RETURN(stream_, device_->NewStream());
    CAIRN_ASSIGN_OR_RETURN(end_, device_->NewEvent());
    const Status filled = Fill();
    // Also after an error: nothing may be under way when its memory goes.
    Status ended = stream_.Record(end_);
    if (ended.ok()) ended = Await(end_, "loading the weights");
    CAIRN_RETURN_IF_ERROR(filled);
    CAIRN_RETURN_IF_ERROR(ended);
    return std::move(weights_);
  }

 private:
  struct Part {
    const model::Tensor* tensor;
    bool half_split = false;
  };
  struct Matrix {
    std::vector<Part> parts;
    size_t place = 0;
    int64_t outputs = 0;
    int64_t cols = 0;
  };

  Matrix Take(std::vector<Part> parts) {
    Matrix matrix{std::move(parts), 0, 0, 0};
    for (const Part& part : matrix.parts) {
      matrix.outputs += part.tensor->rows;
      matrix.cols = part.tensor->cols;
      most_bytes_ = std::max<int64_t>(most_bytes_, std::ssize(part.tensor->data));
      most_rows_ = std::max(most_rows_, part.tensor->rows);
    }
    matrix.place = plan_.Take<uint16_t>(matrix.outputs * matrix.cols);
    return matrix;
  }

  void Plan() {
    for (int i = 0; i < hp_.layers; ++i) {
      const model::LayerWeights& layer = model_.layer(i);
      norms_.push_back({&layer.attn_norm, plan_.Take<float>(hp_.hidden)});
      norms_.push_back({&layer.ffn_norm, plan_.Take<float>(hp_.hidden)});
      matrices_.push_back(Take({{&layer.q, true}, {&layer.k, true}, {&layer.v}}));
      matrices_.push_back(Take({{&layer.o}}));
      matrices_.push_back(Take({{&layer.gate}, {&layer.up}}));
      matrices_.push_back(Take({{&layer.down}}));
    }
    norms_.push_back({&model_.output_norm(), plan_.Take<float>(hp_.hidden)});
    matrices_.push_back(Take({{&model_.output()}}));
    embedding_place_ = plan_.Take<std::byte>(std::ssize(model_.token_embedding().data));
    const int64_t table = positions_ * (hp_.rope_dim / 2);
    cosine_place_ = plan_.Take<float>(table);
    sine_place_ = plan_.Take<float>(table);
    // Staging for the file's rows, and for the order of q's and k's.
    staged_rows_ = staging_plan_.Take<std::byte>(most_bytes_);
    staged_order_ = staging_plan_.Take<int32_t>(most_rows_);
  }

  Status Fill() {
    for (const auto& [tensor, place] : norms_) {
      kept_.push_back(model::FloatsOf(*tensor));
      CAIRN_RETURN_IF_ERROR(Upload(kept_.back().data(), Base() + place, kept_.back().size() * 4));
    }
    for (const Matrix& matrix : matrices_) CAIRN_RETURN_IF_ERROR(FillMatrix(matrix));
    const auto embedding = model_.token_embedding().data;
    CAIRN_RETURN_IF_ERROR(Upload(embedding.data(), Base() + embedding_place_, embedding.size()));
    CAIRN_RETURN_IF_ERROR(FillRotations());
    Publish();
    return OkStatus();
  }

  Status FillMatrix(const Matrix& matrix) {
    uint16_t* out = At<uint16_t>(Base(), matrix.place);
    for (const Part& part : matrix.parts) {
      const model::Tensor& tensor = *part.tensor;
      CAIRN_RETURN_IF_ERROR(
          Upload(tensor.data.data(), staging_.address() + staged_rows_, tensor.data.size()));
      DequantiseArgs args{.type = tensor.type,
                          .matrix = At<std::byte>(staging_.address(), staged_rows_),
                          .source_rows = nullptr,
                          .out = out,
                          .rows = tensor.rows,
                          .cols = tensor.cols,
                          .out_stride = tensor.cols};
      if (part.half_split) {
        std::vector<int32_t>& order = orders_.emplace_back(static_cast<size_t>(tensor.rows));
        for (int64_t r = 0; r < tensor.rows; ++r) {
          order[static_cast<size_t>(r)] = static_cast<int32_t>(model::HalfSplitRow(hp_, r));
        }
        CAIRN_RETURN_IF_ERROR(
            Upload(order.data(), staging_.address() + staged_order_, order.size() * 4));
        args.source_rows = At<int32_t>(staging_.address(), staged_order_);
      }
      CAIRN_RETURN_IF_ERROR(device::Launched(
          "dequantising weights", kernels_.dequantise(stream_.native(), args), *device_));
      out += tensor.rows * tensor.cols;
    }
    return OkStatus();
  }

  // As the CPU makes them for each row.
  Status FillRotations() {
    const int64_t half = hp_.rope_dim / 2;
    std::vector<float>& cosine = kept_.emplace_back(static_cast<size_t>(positions_ * half));
    std::vector<float>& sine = kept_.emplace_back(static_cast<size_t>(positions_ * half));
    for (int64_t p = 0; p < half; ++p) {
      const double exponent = -2.0 * static_cast<double>(p) / hp_.rope_dim;
      const double step = std::pow(static_cast<double>(hp_.rope_base), exponent);
      for (int64_t i = 0; i < positions_; ++i) {
        const double angle = static_cast<double>(i) * step;
        cosine[static_cast<size_t>(i * half + p)] = static_cast<float>(std::cos(angle));
        sine[static_cast<size_t>(i * half + p)] = static_cast<float>(std::sin(angle));
      }
    }
    CAIRN_RETURN_IF_ERROR(Upload(cosine.data(), Base() + cosine_place_, cosine.size() * 4));
    return Upload(sine.data(), Base() + sine_place_, sine.size() * 4);
  }

  void Publish() {
    DeviceWeights& w = *weights_;
    size_t norm = 0, matrix = 0;
    const auto next_norm = [&] { return At<const float>(Base(), norms_[norm++].second); };
    const auto next = [&] {
      const Matrix& m = matrices_[matrix++];
      return DeviceMatrix{At<const uint16_t>(Base(), m.place), m.outputs, m.cols};
    };
    for (int i = 0; i < hp_.layers; ++i) {
      DeviceLayer& layer = w.layers_.emplace_back();
      layer.attn_norm = next_norm();
      layer.ffn_norm = next_norm();
      layer.qkv = next();
      layer.o = next();
      layer.gate_up = next();
      layer.down = next();
    }
    w.output_norm_ = next_norm();
    w.output_ = next();
    w.embedding_ = At<const std::byte>(Base(), embedding_place_);
    w.cosine_ = At<const float>(Base(), cosine_place_);
    w.sine_ = At<const float>(Base(), sine_place_);
  }

  uint64_t Base() const { return weights_->memory_.address(); }
  Status Upload(const void* from, uint64_t to, size_t bytes) {
    const device::CopyTask task{to, reinterpret_cast<uint64_t>(from), bytes};
    return stream_.Copy("upload of weights", {&task, 1});
  }

  const model::Model& model_;
  const model::Hyperparameters& hp_;
  const int64_t positions_;
  const std::shared_ptr<device::Device> device_;
  const ForwardKernels& kernels_;
  ArenaPlan plan_, staging_plan_;
  std::vector<std::pair<const model::Tensor*, size_t>> norms_;
  std::vector<Matrix> matrices_;
  size_t embedding_place_ = 0, cosine_place_ = 0, sine_place_ = 0;
  size_t staged_rows_ = 0, staged_order_ = 0;
  int64_t most_bytes_ = 0, most_rows_ = 0;
  // Read by copies that may happen late.
  std::deque<std::vector<float>> kept_;
  std::deque<std::vector<int32_t>> orders_;
  std::unique_ptr<DeviceWeights> weights_{new DeviceWeights};
  device::DeviceMemory staging_;
  device::Stream stream_;
  device::Event end_;
};

Result<std::unique_ptr<DeviceWeights>> DeviceWeights::Load(
    const model::Model& model, int64_t positions, const std::shared_ptr<device::Device>& device,
    const ForwardKernels& kernels) {
  return Loader(model, positions, device, kernels).Run();
}

}  // namespace cairn::worker
