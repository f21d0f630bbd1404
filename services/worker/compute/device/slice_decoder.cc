#include "services/worker/compute/device/slice_decoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/log/log.h"
#include "services/worker/compute/device/arena.h"
#include "services/worker/compute/device/device_wait.h"
#include "services/worker/compute/device/device_weights.h"

namespace cairn::worker {

using kernels::HashRun;
using kernels::SliceForm;
using kernels::SliceTask;

namespace {

constexpr uint64_t kEncodedBytes = 8 << 20;
constexpr uint64_t kDecodedBytes = 16 << 20;
constexpr uint64_t kScratchBytes = 64 << 20;  // Of cachegen alone, grown when it comes.
constexpr size_t kMostSlices = 500;           // Of one launch.
constexpr uint64_t kAlignment = 256;

uint64_t Aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

SliceTask TaskOf(const SliceLoader::Slice& slice, int32_t tokens) {
  SliceTask task;
  task.bytes = slice.bytes;
  task.first_position = slice.first_position;
  task.tokens = tokens;
  task.layer = slice.layer;
  return task;
}

}  // namespace

Result<std::unique_ptr<SliceDecoder>> SliceDecoder::Create(
    const std::shared_ptr<device::Device>& device, const KvLayout& kv,
    const kernels::batch::SliceTable& kernels, KvMirror& mirror) {
  std::unique_ptr<SliceDecoder> decoder(new SliceDecoder(device, kv, kernels, mirror));
  MutexLock lock(decoder->mu_);
  // One slice of the largest kind must fit: raw ones are as large as a layer.
  const uint64_t layer = Aligned(kv.layer_bytes()) + kAlignment;
  CAIRN_ASSIGN_OR_RETURN(decoder->encoded_, device->AllocatePinned(std::max(kEncodedBytes, layer)));
  CAIRN_ASSIGN_OR_RETURN(decoder->decoded_, device->AllocatePinned(std::max(kDecodedBytes, layer)));
  CAIRN_ASSIGN_OR_RETURN(decoder->faults_, device->AllocatePinned(kMostSlices * sizeof(uint32_t)));
  CAIRN_ASSIGN_OR_RETURN(decoder->encoded_there_,
                         AllocateFor("encoded slices", decoder->encoded_.bytes().size(), device));
  CAIRN_ASSIGN_OR_RETURN(
      decoder->work_there_,
      AllocateFor("faults of slices", Aligned(kMostSlices * sizeof(uint32_t)), device));
  CAIRN_ASSIGN_OR_RETURN(decoder->done_, device->NewEvent());
  CAIRN_ASSIGN_OR_RETURN(decoder->stream_, device->NewStream());
  return decoder;
}

size_t SliceDecoder::BatchOf(const SliceForm& form, std::span<const Slice> slices) const {
  uint64_t encoded = 0, decoded = 0, scratch = 0;
  size_t count = 0;
  for (; count < std::min(slices.size(), kMostSlices); ++count) {
    const Slice& slice = slices[count];
    if (slice.address == 0) encoded += Aligned(slice.bytes);
    decoded += kv_.layer_bytes();
    scratch += Aligned(
        static_cast<uint64_t>(kernels::SliceScratchBytes(form, TaskOf(slice, kv_.block_tokens))));
    const bool fits =
        encoded <= kEncodedBytes && decoded <= kDecodedBytes && scratch <= kScratchBytes;
    if (!fits && count > 0) break;
  }
  return count;
}

std::vector<SliceLoader::Outcome> SliceDecoder::Load(const SliceForm& form,
                                                     std::span<const Slice> slices) {
  std::vector<Outcome> outcomes;
  outcomes.reserve(slices.size());
  MutexLock lock(mu_);
  while (!slices.empty()) {
    Batch batch{form, slices.first(BatchOf(form, slices)), {}};
    slices = slices.subspan(batch.slices.size());
    for (const Slice& slice : batch.slices) {
      batch.slots.push_back(stuck_ ? nullptr : mirror_.BeginLoad(slice.stamp));
    }
    const Status ran = stuck_ ? OkStatus() : RunBatch(batch);
    if (!ran.ok()) log::Warn("slices_not_decoded_on_device", {{"error", ToString(ran)}});
    for (size_t i = 0; i < batch.slices.size(); ++i) {
      const Outcome outcome =
          ran.ok() && batch.slots[i] != nullptr ? Take(batch, i) : Outcome::kUnread;
      outcomes.push_back(outcome);
      // A slot that the device may still write to is nobody's for good.
      if (batch.slots[i] != nullptr && !stuck_) {
        mirror_.EndLoad(batch.slots[i], batch.slices[i].layer, outcome == Outcome::kGood);
      }
    }
  }
  return outcomes;
}

Status SliceDecoder::Launched(const char* what, int error) const {
  if (error == 0) return OkStatus();
  if (device_->lost()) return device_->LossStatus();
  return Errorf(StatusCode::kInternal, "{}: the launch failed with error {}", what, error);
}

Status SliceDecoder::RunBatch(const Batch& batch) {
  CAIRN_RETURN_IF_ERROR(device_->LossStatus());
  uint64_t scratch = Aligned(kMostSlices * sizeof(uint32_t));
  for (const Slice& slice : batch.slices) {
    scratch += Aligned(static_cast<uint64_t>(
        kernels::SliceScratchBytes(batch.form, TaskOf(slice, kv_.block_tokens))));
  }
  if (scratch > work_there_.bytes()) {
    work_there_.Release();
    CAIRN_ASSIGN_OR_RETURN(work_there_, AllocateFor("slices of cachegen", scratch, device_));
  }
  const uint64_t faults = work_there_.address();
  uint64_t work = faults + Aligned(kMostSlices * sizeof(uint32_t));
  std::vector<device::CopyTask> in, out;
  std::vector<HashRun> runs;
  std::vector<SliceTask> tasks;
  uint64_t encoded = 0;
  for (size_t i = 0; i < batch.slices.size(); ++i) {
    if (batch.slots[i] == nullptr) continue;
    const Slice& slice = batch.slices[i];
    SliceTask& task = tasks.emplace_back(TaskOf(slice, kv_.block_tokens));
    uint64_t from = slice.address;
    if (from == 0) {
      std::byte* const pinned = encoded_.bytes().data() + encoded;
      std::memcpy(pinned, slice.host, slice.bytes);
      from = encoded_there_.address() + encoded;
      in.push_back({from, reinterpret_cast<uint64_t>(pinned), slice.bytes});
      encoded += Aligned(slice.bytes);
    }
    const uint64_t layer =
        batch.slots[i]->address + kv_.layer_bytes() * static_cast<uint64_t>(slice.layer);
    task.encoded = At<std::byte>(from, 0);
    task.k = At<uint16_t>(layer, 0);
    task.v = At<uint16_t>(layer, kv_.plane_bytes());
    task.faults = At<uint32_t>(faults, i * sizeof(uint32_t));
    const auto needed = static_cast<uint64_t>(kernels::SliceScratchBytes(batch.form, task));
    if (needed > 0) task.scratch = At<std::byte>(work, 0);
    work += Aligned(needed);
    runs.push_back({.in = task.encoded,
                    .bytes = slice.bytes,
                    .hash = nullptr,
                    .faults = task.faults,
                    .expected = slice.xxh3});
    out.push_back({reinterpret_cast<uint64_t>(decoded_.bytes().data()) + i * kv_.layer_bytes(),
                   layer, kv_.layer_bytes()});
  }
  if (tasks.empty()) return OkStatus();
  const uint64_t fault_bytes = batch.slices.size() * sizeof(uint32_t);
  out.push_back({reinterpret_cast<uint64_t>(faults_.bytes().data()), faults, fault_bytes});
  const auto count = static_cast<int64_t>(tasks.size());
  const auto issue = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> Status {
    CAIRN_RETURN_IF_ERROR(stream_.Fill("faults of slices", faults, 0, fault_bytes));
    CAIRN_RETURN_IF_ERROR(stream_.Copy("upload of encoded slices", in));
    CAIRN_RETURN_IF_ERROR(
        Launched("hashes", kernels_.hash_runs(stream_.native(), {runs.data(), count})));
    CAIRN_RETURN_IF_ERROR(Launched(
        "decoding", kernels_.decode_slices(stream_.native(), {batch.form, tasks.data(), count})));
    return stream_.Copy("download of decoded slices", out);
  };
  const Status issued = issue();
  // Also after an error: what was issued is under way.
  Status ended = stream_.Record(done_);
  if (ended.ok()) ended = Await(done_, "decoding of slices");
  // A lost device does nothing any more.
  stuck_ = !ended.ok() && !device_->lost();
  return issued.ok() ? ended : issued;
}

SliceLoader::Outcome SliceDecoder::Take(const Batch& batch, size_t index) {
  uint32_t faults = 0;
  std::memcpy(&faults, faults_.bytes().data() + index * sizeof(uint32_t), sizeof(faults));
  if (faults != 0) return Outcome::kWrong;
  std::memcpy(batch.slices[index].page, decoded_.bytes().data() + index * kv_.layer_bytes(),
              kv_.layer_bytes());
  return Outcome::kGood;
}

}  // namespace cairn::worker
