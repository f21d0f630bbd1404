#include "services/worker/compute/device/device_page_encoder.h"

#include <cstring>

#include "common/device/launched.h"
#include "common/log/log.h"
#include "services/worker/compute/device/arena.h"
#include "services/worker/compute/device/device_wait.h"
#include "services/worker/compute/device/slice_batch.h"

namespace cairn::worker {

using kernels::HashRun;
using kernels::SliceForm;
using kernels::SliceTask;

namespace {

// Limit for a batch, which is small so that it holds few slots, and these not for long.
constexpr uint64_t kEncodedBytes = 16 << 20;
constexpr uint64_t kScratchBytes = 64 << 20;

}  // namespace

Result<std::unique_ptr<DevicePageEncoder>> DevicePageEncoder::Create(
    const std::shared_ptr<device::Device>& device, const KvLayout& kv,
    const kernels::batch::SliceTable& kernels, KvMirror& mirror) {
  std::unique_ptr<DevicePageEncoder> encoder(new DevicePageEncoder(device, kv, kernels, mirror));
  CAIRN_ASSIGN_OR_RETURN(encoder->done_, device->NewEvent());
  CAIRN_ASSIGN_OR_RETURN(encoder->stream_, device->NewStream());
  return encoder;
}

uint64_t DevicePageEncoder::WordBytes(size_t slices) {
  return slices * (2 * sizeof(uint64_t) + sizeof(uint32_t));
}

DevicePageEncoder::Words DevicePageEncoder::WordsAt(uint64_t address, size_t slices) {
  return {.lengths = At<uint64_t>(address, 0),
          .hashes = At<uint64_t>(address, slices * sizeof(uint64_t)),
          .faults = At<uint32_t>(address, 2 * slices * sizeof(uint64_t))};
}

SliceTask DevicePageEncoder::TaskOf(const Page& page, int32_t layer) const {
  SliceTask task;
  task.first_position = page.first_position;
  task.tokens = kv_.block_tokens;
  task.layer = layer;
  return task;
}

void DevicePageEncoder::Encode(const SliceForm& form, std::span<const Page> pages,
                               const Take& take) {
  if (busy_.exchange(true, std::memory_order_acquire)) return;
  size_t next = 0;
  while (next < pages.size() && !off_ && !device_->lost()) {
    Batch batch = TakeBatch(form, pages, &next);
    if (!batch.pages.empty()) EncodeBatch(form, &batch, take);
  }
  busy_.store(false, std::memory_order_release);
}

DevicePageEncoder::Batch DevicePageEncoder::TakeBatch(const SliceForm& form,
                                                      std::span<const Page> pages,
                                                      size_t* next) const {
  Batch batch;
  for (; *next < pages.size(); ++*next) {
    const Page& page = pages[*next];
    std::vector<SliceTask> tasks;
    uint64_t encoded = 0, scratch = 0;
    for (int32_t layer = 0; layer < kv_.layers; ++layer) {
      SliceTask& task = tasks.emplace_back(TaskOf(page, layer));
      task.bytes = static_cast<uint64_t>(kernels::SliceBytes(form, task));
      encoded += SliceBatch::Rounded(task.bytes);
      scratch += SliceBatch::ScratchOf(form, task);
    }
    const bool fits =
        batch.encoded + encoded <= kEncodedBytes && batch.scratch + scratch <= kScratchBytes;
    if (!fits && !batch.pages.empty()) break;
    const KvMirror::Slot* const slot = page.stamp == 0 ? nullptr : mirror_.BeginRead(page.stamp);
    if (slot == nullptr) continue;
    batch.pages.push_back(*next);
    batch.slots.push_back(slot);
    batch.tasks.insert(batch.tasks.end(), tasks.begin(), tasks.end());
    batch.encoded += encoded;
    batch.scratch += scratch;
  }
  return batch;
}

void DevicePageEncoder::EncodeBatch(const SliceForm& form, Batch* batch, const Take& take) {
  Status status = Place(form, batch);
  off_ = !status.ok();
  if (status.ok()) status = Run(form, *batch);
  for (const KvMirror::Slot* slot : batch->slots) mirror_.EndRead(slot);
  if (status.ok()) return Give(*batch, take);
  log::Warn("pages_not_encoded_on_device",
            {{"error", ToString(status)}, {"again", off_ ? "no" : "yes"}});
}

Status DevicePageEncoder::Place(const SliceForm& form, Batch* batch) {
  const size_t slices = batch->tasks.size();
  const uint64_t words = SliceBatch::Rounded(WordBytes(slices));
  CAIRN_RETURN_IF_ERROR(encoded_there_.Grow("encoded pages", batch->encoded, device_));
  CAIRN_RETURN_IF_ERROR(work_there_.Grow("encoding pages", words + batch->scratch, device_));
  for (const auto& [memory, bytes] :
       {std::pair{&encoded_, encoded_there_.bytes()}, {&words_, words}}) {
    if (memory->bytes().size() >= bytes) continue;
    memory->Release();
    CAIRN_ASSIGN_OR_RETURN(*memory, device_->AllocatePinned(bytes));
  }
  const Words at = WordsAt(work_there_.address(), slices);
  uint64_t encoded = encoded_there_.address();
  uint64_t scratch = work_there_.address() + words;
  for (size_t i = 0; i < slices; ++i) {
    SliceTask& task = batch->tasks[i];
    const uint64_t page = batch->slots[i / static_cast<size_t>(kv_.layers)]->address;
    const uint64_t layer = page + kv_.layer_bytes() * static_cast<uint64_t>(task.layer);
    task.k = At<uint16_t>(layer, 0);
    task.v = At<uint16_t>(layer, kv_.plane_bytes());
    task.encoded = At<std::byte>(encoded, 0);
    task.faults = at.faults + i;
    encoded += SliceBatch::Rounded(task.bytes);
    const uint64_t needed = SliceBatch::ScratchOf(form, task);
    if (needed == 0) continue;
    task.scratch = At<std::byte>(scratch, 0);
    task.encoded_bytes = at.lengths + i;
    scratch += needed;
  }
  return OkStatus();
}

Status DevicePageEncoder::Finish(const char* what) {
  Status ended = stream_.Record(done_);
  if (ended.ok()) ended = Await(done_, what);
  // Copies that were issued may still write: nothing may be reused. A lost device does nothing any
  // more.
  if (!ended.ok() && !device_->lost()) off_ = true;
  return ended;
}

Status DevicePageEncoder::Run(const SliceForm& form, const Batch& batch) {
  const size_t slices = batch.tasks.size();
  const Words there = WordsAt(work_there_.address(), slices);
  const Words here = WordsAt(reinterpret_cast<uint64_t>(words_.bytes().data()), slices);
  const device::CopyTask words{reinterpret_cast<uint64_t>(words_.bytes().data()),
                               work_there_.address(), WordBytes(slices)};
  const auto encode = [&]() -> Status {
    CAIRN_RETURN_IF_ERROR(
        stream_.Fill("words of encoded pages", work_there_.address(), 0, WordBytes(slices)));
    CAIRN_RETURN_IF_ERROR(
        Launched("encoding",
                 kernels_.encode_slices(stream_.native(),
                                        {form, batch.tasks.data(), std::ssize(batch.tasks)}),
                 *device_));
    return IsCacheGen(form) ? stream_.Copy("download of lengths", {&words, 1}) : OkStatus();
  };
  Status status = encode();
  lengths_.clear();
  // Only the encoder knows how long slices of cachegen are.
  if (IsCacheGen(form) || !status.ok()) {
    const Status ended = Finish("encoding of pages");
    if (status.ok()) status = ended;
    CAIRN_RETURN_IF_ERROR(status);
  }
  for (size_t i = 0; i < slices; ++i) {
    const uint64_t length = IsCacheGen(form) ? here.lengths[i] : batch.tasks[i].bytes;
    lengths_.push_back(length <= batch.tasks[i].bytes ? length : 0);
  }
  std::vector<HashRun> runs;
  std::vector<device::CopyTask> copies;
  uint64_t used = reinterpret_cast<uint64_t>(encoded_.bytes().data());
  for (size_t i = 0; i < slices; ++i) {
    if (lengths_[i] == 0) continue;
    runs.push_back({.in = batch.tasks[i].encoded,
                    .bytes = lengths_[i],
                    .hash = there.hashes + i,
                    .faults = nullptr,
                    .expected = 0});
    copies.push_back({used, reinterpret_cast<uint64_t>(batch.tasks[i].encoded), lengths_[i]});
    used += lengths_[i];
  }
  copies.push_back(words);
  const auto fetch = [&]() -> Status {
    CAIRN_RETURN_IF_ERROR(device::Launched(
        "hashes", kernels_.hash_runs(stream_.native(), {runs.data(), std::ssize(runs)}), *device_));
    return stream_.Copy("download of encoded pages", copies);
  };
  status = fetch();
  const Status ended = Finish("encoding of pages");
  return status.ok() ? ended : status;
}

void DevicePageEncoder::Give(const Batch& batch, const Take& take) const {
  const auto layers = static_cast<size_t>(kv_.layers);
  const Words words =
      WordsAt(reinterpret_cast<uint64_t>(words_.bytes().data()), batch.tasks.size());
  const std::byte* at = encoded_.bytes().data();
  for (size_t page = 0; page < batch.pages.size(); ++page) {
    const size_t first = page * layers;
    uint64_t bytes = 0;
    bool good = true;
    for (size_t i = first; i < first + layers; ++i) {
      bytes += lengths_[i];
      good = good && lengths_[i] > 0 && words.faults[i] == 0;
    }
    if (good) {
      take(batch.pages[page], {.bytes = {at, bytes},
                               .lengths = std::span(lengths_).subspan(first, layers),
                               .hashes = {words.hashes + first, layers}});
    }
    at += bytes;
  }
}

}  // namespace cairn::worker
