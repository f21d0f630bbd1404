#include "services/worker/compute/device/kv_downloads.h"

#include <cstring>

#include "cairn/kernels/weight_types.h"
#include "services/worker/compute/device/device_wait.h"

namespace cairn::worker {

Result<std::unique_ptr<KvDownloads>> KvDownloads::Create(
    const std::shared_ptr<device::Device>& device, const KvLayout& kv, int heads,
    int64_t max_rows) {
  std::unique_ptr<KvDownloads> downloads(new KvDownloads);
  downloads->kv_ = kv;
  downloads->q_width_ = int64_t{heads} * kv.head_dim;
  const size_t row =
      (2 * static_cast<size_t>(kv.kv_heads) + static_cast<size_t>(heads)) * kv.row_bytes();
  CAIRN_ASSIGN_OR_RETURN(downloads->stream_, device->NewStream());
  for (Layer& layer : downloads->layers_) {
    CAIRN_ASSIGN_OR_RETURN(layer.memory,
                           device->AllocatePinned(row * static_cast<size_t>(max_rows)));
    CAIRN_ASSIGN_OR_RETURN(layer.computed, device->NewEvent());
    CAIRN_ASSIGN_OR_RETURN(layer.arrived, device->NewEvent());
  }
  return downloads;
}

Status KvDownloads::Start(int layer_index, std::span<const DeviceRun> runs, const uint16_t* queries,
                          device::Stream* compute) {
  if (next_ - first_ == kLayers) CAIRN_RETURN_IF_ERROR(EndFirst());
  Layer& layer = layers_[next_ % kLayers];
  layer.layer = layer_index;
  layer.runs = runs;
  layer.pieces.clear();
  layer.queries.clear();
  tasks_.clear();
  queries_read_ = false;
  size_t used = 0;
  const auto copy = [&](uint64_t from, size_t bytes) {
    tasks_.push_back({reinterpret_cast<uint64_t>(layer.memory.bytes().data()) + used, from, bytes});
    used += bytes;
  };
  for (const DeviceRun& run : runs) {
    for (int64_t page = run.tokens_before() / kv_.block_tokens; page < std::ssize(run.slots);
         ++page) {
      std::byte* const host = run.chunk->sequence->LayerSlice(page, layer_index).data() -
                              kv_.layer_bytes() * static_cast<size_t>(layer_index);
      const uint64_t device = run.slots[static_cast<size_t>(page)]->address;
      const PageTokens tokens =
          TokensIn(page, run.tokens_before(), run.tokens_after(), kv_.block_tokens);
      ForEachRowRun(kv_, layer_index, tokens, [&](size_t offset, size_t bytes) {
        layer.pieces.push_back({host + offset, used, bytes});
        copy(device + offset, bytes);
      });
    }
    layer.queries.push_back(run.chunk->observe ? used : kNone);
    if (!run.chunk->observe) continue;
    queries_read_ = true;
    copy(reinterpret_cast<uint64_t>(queries + run.first_row * q_width_),
         static_cast<size_t>(run.rows * q_width_) * sizeof(uint16_t));
  }
  CAIRN_RETURN_IF_ERROR(compute->Record(layer.computed));
  CAIRN_RETURN_IF_ERROR(stream_.Wait(layer.computed));
  CAIRN_RETURN_IF_ERROR(stream_.Copy("download of computed KV", tasks_));
  CAIRN_RETURN_IF_ERROR(stream_.Record(layer.arrived));
  ++next_;
  return OkStatus();
}

Status KvDownloads::WaitForQueries(device::Stream* compute) {
  if (!queries_read_ || next_ == first_) return OkStatus();
  return compute->Wait(layers_[(next_ - 1) % kLayers].arrived);
}

Status KvDownloads::Poll() {
  while (first_ != next_) {
    CAIRN_ASSIGN_OR_RETURN(const bool arrived, First().arrived.Query());
    if (!arrived) return OkStatus();
    CAIRN_RETURN_IF_ERROR(EndFirst());
  }
  return OkStatus();
}

Status KvDownloads::Finish() {
  while (first_ != next_) CAIRN_RETURN_IF_ERROR(EndFirst());
  return OkStatus();
}

void KvDownloads::Abandon() {
  // A lost device does nothing any more.
  for (; first_ != next_; ++first_) (void)Await(First().arrived, "an abandoned download");
}

Status KvDownloads::EndFirst() {
  Layer& layer = First();
  CAIRN_RETURN_IF_ERROR(Await(layer.arrived, "download of computed KV"));
  for (const Piece& piece : layer.pieces) {
    std::memcpy(piece.to, layer.memory.bytes().data() + piece.from, piece.bytes);
  }
  for (size_t i = 0; i < layer.runs.size(); ++i) {
    if (layer.queries[i] != kNone) Observe(layer, layer.runs[i], layer.queries[i]);
  }
  for (const DeviceRun& run : layer.runs) {
    if (run.chunk->after_layer) run.chunk->after_layer(layer.layer);
  }
  ++first_;
  return OkStatus();
}

void KvDownloads::Observe(const Layer& layer, const DeviceRun& run, size_t offset) {
  const size_t count = static_cast<size_t>(run.rows * q_width_);
  widened_.resize(count);
  const auto* const halves =
      reinterpret_cast<const uint16_t*>(layer.memory.bytes().data() + offset);
  for (size_t i = 0; i < count; ++i) widened_[i] = kernels::HalfToFloat(halves[i]);
  run.chunk->observe({layer.layer, run.first_position, run.rows, widened_.data(), q_width_});
}

}  // namespace cairn::worker
