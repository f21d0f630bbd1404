#include "services/worker/compute/device/slice_decoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/log/log.h"
#include "services/worker/compute/device/arena.h"
#include "services/worker/compute/device/device_weights.h"

namespace cairn::worker {

using kernels::SliceForm;
using kernels::SliceTask;

Result<std::unique_ptr<SliceDecoder>> SliceDecoder::Create(
    const std::shared_ptr<device::Device>& device, const KvLayout& kv,
    const kernels::batch::SliceTable& kernels, KvMirror& mirror) {
  std::unique_ptr<SliceDecoder> decoder(new SliceDecoder(device, kv, mirror));
  MutexLock lock(decoder->mu_);
  // Raw slices are as large as a layer, and masks and lengths of selected ones come on top.
  const SliceBatch::Need largest{.encoded = SliceBatch::Rounded(2 * kv.layer_bytes()),
                                 .results = kv.layer_bytes()};
  CAIRN_ASSIGN_OR_RETURN(decoder->batch_, SliceBatch::Create(device, largest, kernels));
  return decoder;
}

SliceTask SliceDecoder::TaskOf(const Slice& slice) const {
  SliceTask task;
  task.bytes = slice.bytes;
  task.first_position = slice.first_position;
  task.tokens = kv_.block_tokens;
  task.layer = slice.layer;
  return task;
}

SliceTask SliceDecoder::TaskOf(const RowsSlice& slice, const RowsOfHead& head) const {
  SliceTask task;
  task.bytes = head.bytes;
  // All that codecs ask of a position is whether it is the first.
  task.first_position = head.sequence_start ? 0 : kv_.block_tokens;
  task.tokens = head.rows;
  task.layer = slice.layer;
  return task;
}

SliceBatch::Need SliceDecoder::NeedOf(const SliceForm& form, const Slice& slice) const {
  return {.encoded = slice.address == 0 ? SliceBatch::Rounded(slice.bytes) : 0,
          .results = kv_.layer_bytes(),
          .scratch = SliceBatch::ScratchOf(form, TaskOf(slice)),
          .slices = 1};
}

SliceBatch::Need SliceDecoder::NeedOf(const SliceForm& form, const RowsSlice& slice) const {
  SliceBatch::Need need{.encoded = SliceBatch::Rounded(slice.bytes), .slices = 1};
  for (const RowsOfHead& head : slice.heads) {
    need.results += 2 * static_cast<uint64_t>(head.rows) * kv_.row_bytes();
    need.scratch += SliceBatch::ScratchOf(form, TaskOf(slice, head));
  }
  return need;
}

template <typename AnySlice>
size_t SliceDecoder::BatchOf(const SliceForm& form, std::span<const AnySlice> slices) const {
  SliceBatch::Need all;
  for (size_t count = 0; count < slices.size(); ++count) {
    all += NeedOf(form, slices[count]);
    if (!batch_->HasRoom(all)) return count;
  }
  return slices.size();
}

bool SliceDecoder::Run(const SliceForm& form) {
  const Status ran = batch_->Run(form);
  if (!ran.ok()) log::Warn("slices_not_decoded_on_device", {{"error", ToString(ran)}});
  return ran.ok();
}

std::vector<SliceLoader::Outcome> SliceDecoder::Load(const SliceForm& form,
                                                     std::span<const Slice> slices) {
  std::vector<Outcome> outcomes;
  outcomes.reserve(slices.size());
  MutexLock lock(mu_);
  while (!slices.empty()) {
    const size_t count = batch_->stuck() ? 0 : BatchOf(form, slices);
    if (count == 0) {
      outcomes.push_back(Outcome::kUnread);
      slices = slices.subspan(1);
      continue;
    }
    LoadBatch(form, slices.first(count), &outcomes);
    slices = slices.subspan(count);
  }
  return outcomes;
}

void SliceDecoder::LoadBatch(const SliceForm& form, std::span<const Slice> slices,
                             std::vector<Outcome>* outcomes) {
  struct Loaded {
    KvMirror::Slot* slot = nullptr;  // Null: no room.
    size_t number = 0;               // In the batch.
    const std::byte* decoded = nullptr;
  };
  std::vector<Loaded> loaded(slices.size());
  batch_->Clear();
  for (size_t i = 0; i < slices.size(); ++i) {
    const Slice& slice = slices[i];
    Loaded& to = loaded[i];
    to.slot = mirror_.BeginLoad(slice.stamp);
    if (to.slot == nullptr) continue;
    const uint64_t layer =
        to.slot->address + kv_.layer_bytes() * static_cast<uint64_t>(slice.layer);
    SliceTask task = TaskOf(slice);
    task.k = At<uint16_t>(layer, 0);
    task.v = At<uint16_t>(layer, kv_.plane_bytes());
    to.number = batch_->AddSlice(slice.host, slice.address, slice.bytes, slice.xxh3);
    batch_->AddTask(to.number, 0, task);
    to.decoded = batch_->AddResult(layer, kv_.layer_bytes());
  }
  const bool ran = Run(form);
  for (size_t i = 0; i < slices.size(); ++i) {
    Outcome outcome = Outcome::kUnread;
    if (ran && loaded[i].slot != nullptr) {
      outcome = batch_->Faults(loaded[i].number) == 0 ? Outcome::kGood : Outcome::kWrong;
    }
    if (outcome == Outcome::kGood) {
      std::memcpy(slices[i].page, loaded[i].decoded, kv_.layer_bytes());
    }
    outcomes->push_back(outcome);
    // A slot that the device may still write to is nobody's for good.
    if (loaded[i].slot != nullptr && !batch_->stuck()) {
      mirror_.EndLoad(loaded[i].slot, slices[i].layer, outcome == Outcome::kGood);
    }
  }
}

void SliceDecoder::LoadRows(const SliceForm& form, std::span<const RowsSlice> slices,
                            const TakeRows& take) {
  MutexLock lock(mu_);
  for (size_t first = 0; first < slices.size();) {
    const size_t count = batch_->stuck() ? 0 : BatchOf(form, slices.subspan(first));
    if (count == 0) {
      take(first++, Outcome::kUnread, {});
      continue;
    }
    LoadRowsBatch(form, slices.subspan(first, count), first, take);
    first += count;
  }
}

void SliceDecoder::LoadRowsBatch(const SliceForm& form, std::span<const RowsSlice> slices,
                                 size_t first, const TakeRows& take) {
  bool ran = true;
  if (!rows_there_) {
    Result<device::DeviceMemory> memory = AllocateFor("kept rows", batch_->result_bytes(), device_);
    ran = memory.ok();
    if (ran) {
      rows_there_ = *std::move(memory);
    } else {
      log::Warn("slices_not_decoded_on_device", {{"error", ToString(memory.status())}});
    }
  }
  struct Loaded {
    size_t number = 0;
    std::span<const uint16_t> rows = {};
  };
  std::vector<Loaded> loaded(slices.size());
  batch_->Clear();
  uint64_t used = 0;
  for (size_t i = 0; ran && i < slices.size(); ++i) {
    const RowsSlice& slice = slices[i];
    loaded[i].number = batch_->AddSlice(slice.host, 0, slice.bytes, slice.xxh3);
    const uint64_t begin = rows_there_.address() + used;
    for (const RowsOfHead& head : slice.heads) {
      const uint64_t plane = static_cast<uint64_t>(head.rows) * kv_.row_bytes();
      SliceTask task = TaskOf(slice, head);
      task.k = At<uint16_t>(rows_there_.address(), used);
      task.v = At<uint16_t>(rows_there_.address(), used + plane);
      batch_->AddTask(loaded[i].number, head.offset, task);
      used += 2 * plane;
    }
    const uint64_t bytes = rows_there_.address() + used - begin;
    if (bytes == 0) continue;
    loaded[i].rows = {reinterpret_cast<const uint16_t*>(batch_->AddResult(begin, bytes)),
                      bytes / sizeof(uint16_t)};
  }
  ran = ran && Run(form);
  for (size_t i = 0; i < slices.size(); ++i) {
    if (!ran) {
      take(first + i, Outcome::kUnread, {});
    } else if (batch_->Faults(loaded[i].number) != 0) {
      take(first + i, Outcome::kWrong, {});
    } else {
      take(first + i, Outcome::kGood, loaded[i].rows);
    }
  }
}

}  // namespace cairn::worker
