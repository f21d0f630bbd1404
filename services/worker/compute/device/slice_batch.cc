#include "services/worker/compute/device/slice_batch.h"

#include <algorithm>
#include <cstring>

#include "common/device/launched.h"
#include "services/worker/compute/device/arena.h"
#include "services/worker/compute/device/device_wait.h"
#include "services/worker/compute/device/device_weights.h"

namespace cairn::worker {

using kernels::SliceForm;
using kernels::SliceTask;

namespace {

constexpr uint64_t kEncodedBytes = 8 << 20;
constexpr uint64_t kResultBytes = 16 << 20;
// Scratch of cachegen alone, grown when its slices come.
constexpr uint64_t kScratchBytes = 64 << 20;
constexpr size_t kMostSlices = 500;
constexpr uint64_t kAlignment = 256;

}  // namespace

SliceBatch::Need& SliceBatch::Need::operator+=(const Need& other) {
  encoded += other.encoded;
  results += other.results;
  scratch += other.scratch;
  slices += other.slices;
  return *this;
}

Result<std::unique_ptr<SliceBatch>> SliceBatch::Create(
    const std::shared_ptr<device::Device>& device, const Need& largest,
    const kernels::batch::SliceTable& kernels) {
  std::unique_ptr<SliceBatch> batch(new SliceBatch(device, kernels));
  CAIRN_ASSIGN_OR_RETURN(batch->encoded_,
                         device->AllocatePinned(std::max(kEncodedBytes, largest.encoded)));
  CAIRN_ASSIGN_OR_RETURN(batch->results_,
                         device->AllocatePinned(std::max(kResultBytes, largest.results)));
  CAIRN_ASSIGN_OR_RETURN(batch->faults_, device->AllocatePinned(kMostSlices * sizeof(uint32_t)));
  CAIRN_ASSIGN_OR_RETURN(batch->encoded_there_,
                         AllocateFor("encoded slices", batch->encoded_.bytes().size(), device));
  CAIRN_ASSIGN_OR_RETURN(
      batch->work_there_,
      AllocateFor("faults of slices", Rounded(kMostSlices * sizeof(uint32_t)), device));
  CAIRN_ASSIGN_OR_RETURN(batch->done_, device->NewEvent());
  CAIRN_ASSIGN_OR_RETURN(batch->stream_, device->NewStream());
  return batch;
}

uint64_t SliceBatch::Rounded(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

uint64_t SliceBatch::ScratchOf(const SliceForm& form, const SliceTask& task) {
  return Rounded(static_cast<uint64_t>(kernels::SliceScratchBytes(form, task)));
}

bool SliceBatch::HasRoom(const Need& all) const {
  return all.encoded <= encoded_.bytes().size() && all.results <= results_.bytes().size() &&
         (all.scratch <= kScratchBytes || all.slices == 1) && all.slices <= kMostSlices;
}

void SliceBatch::Clear() {
  runs_.clear();
  tasks_.clear();
  task_slices_.clear();
  uploads_.clear();
  downloads_.clear();
  encoded_used_ = results_used_ = 0;
}

size_t SliceBatch::AddSlice(const std::byte* host, uint64_t address, uint64_t bytes,
                            uint64_t xxh3) {
  CAIRN_CHECK(runs_.size() < kMostSlices);
  if (address == 0) {
    CAIRN_CHECK(encoded_used_ + bytes <= encoded_.bytes().size());
    std::byte* const pinned = encoded_.bytes().data() + encoded_used_;
    std::memcpy(pinned, host, bytes);
    address = encoded_there_.address() + encoded_used_;
    uploads_.push_back({address, reinterpret_cast<uint64_t>(pinned), bytes});
    encoded_used_ += Rounded(bytes);
  }
  runs_.push_back({.in = At<std::byte>(address, 0),
                   .bytes = bytes,
                   .hash = nullptr,
                   .faults = nullptr,
                   .expected = xxh3});
  return runs_.size() - 1;
}

void SliceBatch::AddTask(size_t slice, uint64_t offset, const SliceTask& task) {
  SliceTask& added = tasks_.emplace_back(task);
  added.encoded = const_cast<std::byte*>(runs_[slice].in) + offset;
  task_slices_.push_back(slice);
}

const std::byte* SliceBatch::AddResult(uint64_t from, uint64_t bytes) {
  CAIRN_CHECK(results_used_ + bytes <= results_.bytes().size());
  std::byte* const to = results_.bytes().data() + results_used_;
  downloads_.push_back({reinterpret_cast<uint64_t>(to), from, bytes});
  results_used_ += bytes;
  return to;
}

Status SliceBatch::PlaceWork(const SliceForm& form) {
  const uint64_t faults_bytes = Rounded(kMostSlices * sizeof(uint32_t));
  uint64_t bytes = faults_bytes;
  for (const SliceTask& task : tasks_) bytes += ScratchOf(form, task);
  if (bytes > work_there_.bytes()) {
    work_there_.Release();
    CAIRN_ASSIGN_OR_RETURN(work_there_, AllocateFor("slices of cachegen", bytes, device_));
  }
  uint64_t place = work_there_.address() + faults_bytes;
  for (size_t i = 0; i < runs_.size(); ++i) {
    runs_[i].faults = At<uint32_t>(work_there_.address(), i * sizeof(uint32_t));
  }
  for (size_t i = 0; i < tasks_.size(); ++i) {
    SliceTask& task = tasks_[i];
    // All heads of a slice share its word, so none is decoded after a wrong hash.
    task.faults = runs_[task_slices_[i]].faults;
    const uint64_t needed = ScratchOf(form, task);
    if (needed > 0) task.scratch = At<std::byte>(place, 0);
    place += needed;
  }
  return OkStatus();
}

Status SliceBatch::Issue(const SliceForm& form) {
  const uint64_t fault_bytes = runs_.size() * sizeof(uint32_t);
  downloads_.push_back(
      {reinterpret_cast<uint64_t>(faults_.bytes().data()), work_there_.address(), fault_bytes});
  CAIRN_RETURN_IF_ERROR(stream_.Fill("faults of slices", work_there_.address(), 0, fault_bytes));
  CAIRN_RETURN_IF_ERROR(stream_.Copy("upload of encoded slices", uploads_));
  CAIRN_RETURN_IF_ERROR(device::Launched(
      "hashes", kernels_.hash_runs(stream_.native(), {runs_.data(), std::ssize(runs_)}), *device_));
  if (!tasks_.empty()) {
    CAIRN_RETURN_IF_ERROR(device::Launched(
        "decoding",
        kernels_.decode_slices(stream_.native(), {form, tasks_.data(), std::ssize(tasks_)}),
        *device_));
  }
  return stream_.Copy("download of decoded slices", downloads_);
}

Status SliceBatch::Run(const SliceForm& form) {
  CAIRN_CHECK(!stuck_);
  if (runs_.empty()) return OkStatus();
  CAIRN_RETURN_IF_ERROR(device_->LossStatus());
  CAIRN_RETURN_IF_ERROR(PlaceWork(form));
  const Status issued = Issue(form);
  // Also after an error: what was issued is under way.
  Status ended = stream_.Record(done_);
  if (ended.ok()) ended = Await(done_, "decoding of slices");
  // A lost device does nothing any more.
  stuck_ = !ended.ok() && !device_->lost();
  return issued.ok() ? ended : issued;
}

uint32_t SliceBatch::Faults(size_t slice) const {
  uint32_t faults = 0;
  std::memcpy(&faults, faults_.bytes().data() + slice * sizeof(faults), sizeof(faults));
  return faults;
}

}  // namespace cairn::worker
