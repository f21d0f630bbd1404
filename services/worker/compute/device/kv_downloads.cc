#include "services/worker/compute/device/kv_downloads.h"

#include <algorithm>
#include <cstring>

#include "cairn/kernels/weight_types.h"
#include "services/worker/compute/device/device_wait.h"

namespace cairn::worker {

Result<std::unique_ptr<KvDownloads>> KvDownloads::Create(
    const std::shared_ptr<device::Device>& device, const KvLayout& kv, int heads, int64_t max_rows,
    std::unique_ptr<RowGatherer> gatherer) {
  std::unique_ptr<KvDownloads> downloads(new KvDownloads);
  downloads->kv_ = kv;
  downloads->q_width_ = int64_t{heads} * kv.head_dim;
  downloads->max_rows_ = max_rows;
  downloads->gatherer_ = std::move(gatherer);
  const size_t row =
      (2 * static_cast<size_t>(kv.kv_heads) + static_cast<size_t>(heads)) * kv.row_bytes();
  CAIRN_ASSIGN_OR_RETURN(downloads->stream_, device->NewStream());
  for (Part& part : downloads->parts_) {
    CAIRN_ASSIGN_OR_RETURN(part.memory,
                           device->AllocatePinned(row * static_cast<size_t>(max_rows)));
    CAIRN_ASSIGN_OR_RETURN(part.computed, device->NewEvent());
    CAIRN_ASSIGN_OR_RETURN(part.arrived, device->NewEvent());
  }
  return downloads;
}

// Calls visit(place in the host, address on the device, bytes) for what the run adds to a layer.
template <typename Visitor>
void KvDownloads::ForEachNewRow(const DeviceRun& run, int layer, Visitor&& visit) {
  for (int64_t page = run.tokens_before() / kv_.block_tokens; page < std::ssize(run.slots);
       ++page) {
    std::byte* const host = run.chunk->sequence->LayerSlice(page, layer).data() -
                            kv_.layer_bytes() * static_cast<size_t>(layer);
    const uint64_t device = run.slots[static_cast<size_t>(page)]->address;
    const PageTokens tokens =
        TokensIn(page, run.tokens_before(), run.tokens_after(), kv_.block_tokens);
    ForEachRowRun(kv_, layer, tokens, [&](size_t offset, size_t bytes) {
      visit(host + offset, device + offset, bytes);
    });
  }
}

int KvDownloads::MostLayers(int64_t rows) const {
  return static_cast<int>(max_rows_ / std::max<int64_t>(rows, 1));
}

Status KvDownloads::Start(Layers layers, std::span<const DeviceRun> runs, const uint16_t* queries,
                          device::Stream* compute) {
  if (next_ - first_ == kParts) CAIRN_RETURN_IF_ERROR(EndFirst());
  Part& part = parts_[next_ % kParts];
  part.layers = layers;
  part.runs = runs;
  part.pieces.clear();
  part.queries.clear();
  tasks_.clear();
  queries_read_ = false;
  const bool gathered = IsGathered(part);
  CAIRN_RETURN_IF_ERROR(gathered ? AddGathered(compute, &part) : AddCopies(queries, &part));
  CAIRN_RETURN_IF_ERROR(compute->Record(part.computed));
  CAIRN_RETURN_IF_ERROR(stream_.Wait(part.computed));
  CAIRN_RETURN_IF_ERROR(stream_.Copy("download of computed KV", tasks_));
  CAIRN_RETURN_IF_ERROR(stream_.Record(part.arrived));
  if (gathered) gathered_read_ = &part.arrived;
  ++next_;
  return OkStatus();
}

Status KvDownloads::AddCopies(const uint16_t* queries, Part* part) {
  size_t used = 0;
  const auto copy = [&](uint64_t from, size_t bytes) {
    tasks_.push_back({reinterpret_cast<uint64_t>(part->memory.bytes().data()) + used, from, bytes});
    used += bytes;
    CAIRN_CHECK(used <= part->memory.bytes().size());
  };
  for (const DeviceRun& run : part->runs) {
    for (int layer = part->layers.begin; layer < part->layers.end; ++layer) {
      ForEachNewRow(run, layer, [&](std::byte* host, uint64_t device, size_t bytes) {
        part->pieces.push_back({host, used, bytes});
        copy(device, bytes);
      });
    }
    part->queries.push_back(run.chunk->observe ? used : kNone);
    if (!run.chunk->observe) continue;
    CAIRN_CHECK(part->layers.end - part->layers.begin == 1);
    queries_read_ = true;
    copy(reinterpret_cast<uint64_t>(queries + run.first_row * q_width_),
         static_cast<size_t>(run.rows * q_width_) * sizeof(uint16_t));
  }
  return OkStatus();
}

bool KvDownloads::IsGathered(const Part& part) const {
  // A single layer has few rows, and the next layer would wait for the copy.
  return gatherer_ != nullptr && part.layers.end - part.layers.begin > 1 &&
         std::all_of(part.runs.begin(), part.runs.end(), [](const DeviceRun& run) {
           return run.decodes() && run.rows == 1 && !run.chunk->observe;
         });
}

Status KvDownloads::AddGathered(device::Stream* compute, Part* part) {
  if (gathered_read_ != nullptr) CAIRN_RETURN_IF_ERROR(compute->Wait(*gathered_read_));
  CAIRN_ASSIGN_OR_RETURN(
      const uint64_t rows,
      gatherer_->Gather(part->layers.begin, part->layers.end, part->runs, compute));
  size_t used = 0;
  for (const DeviceRun& run : part->runs) {
    // One row: a piece for each head.
    for (int layer = part->layers.begin; layer < part->layers.end; ++layer) {
      ForEachNewRow(run, layer, [&](std::byte* host, uint64_t, size_t bytes) {
        part->pieces.push_back({host, used, bytes});
        used += bytes;
      });
    }
  }
  CAIRN_CHECK(used <= part->memory.bytes().size());
  part->queries.assign(part->runs.size(), kNone);
  tasks_.push_back({reinterpret_cast<uint64_t>(part->memory.bytes().data()), rows, used});
  return OkStatus();
}

Status KvDownloads::WaitForQueries(device::Stream* compute) {
  if (!queries_read_ || next_ == first_) return OkStatus();
  return compute->Wait(parts_[(next_ - 1) % kParts].arrived);
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
  gathered_read_ = nullptr;
  return OkStatus();
}

void KvDownloads::Abandon() {
  // A lost device does nothing any more.
  for (; first_ != next_; ++first_) (void)Await(First().arrived, "an abandoned download");
  gathered_read_ = nullptr;
}

Status KvDownloads::EndFirst() {
  Part& part = First();
  CAIRN_RETURN_IF_ERROR(Await(part.arrived, "download of computed KV"));
  for (const Piece& piece : part.pieces) {
    std::memcpy(piece.to, part.memory.bytes().data() + piece.from, piece.bytes);
  }
  for (size_t i = 0; i < part.runs.size(); ++i) {
    if (part.queries[i] != kNone) Observe(part, part.runs[i], part.queries[i]);
  }
  for (int layer = part.layers.begin; layer < part.layers.end; ++layer) {
    for (const DeviceRun& run : part.runs) {
      if (run.chunk->after_layer) run.chunk->after_layer(layer);
    }
  }
  ++first_;
  return OkStatus();
}

void KvDownloads::Observe(const Part& part, const DeviceRun& run, size_t offset) {
  const size_t count = static_cast<size_t>(run.rows * q_width_);
  widened_.resize(count);
  const auto* const halves = reinterpret_cast<const uint16_t*>(part.memory.bytes().data() + offset);
  for (size_t i = 0; i < count; ++i) widened_[i] = kernels::HalfToFloat(halves[i]);
  run.chunk->observe({part.layers.begin, run.first_position, run.rows, widened_.data(), q_width_});
}

}  // namespace cairn::worker
