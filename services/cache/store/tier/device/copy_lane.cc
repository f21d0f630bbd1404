#include "services/cache/store/tier/device/copy_lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/log/log.h"
#include "common/memory/bulk_copy.h"

namespace cairn::cache {
namespace {

constexpr int kRecordAttempts = 3;

uint64_t AddressOf(const std::byte* at) { return reinterpret_cast<uint64_t>(at); }

}  // namespace

Result<std::unique_ptr<CopyLane>> CopyLane::Create(const Options& options,
                                                   std::shared_ptr<device::Device> device,
                                                   device::EventPoller* poller, HostPins* pins) {
  std::unique_ptr<CopyLane> lane(new CopyLane(options, std::move(device), poller, pins));
  CAIRN_RETURN_IF_ERROR(lane->Open());
  return lane;
}

Status CopyLane::Open() {
  MutexLock lock(mu_);
  CAIRN_ASSIGN_OR_RETURN(stream_, device_->NewStream());
  const uint64_t bytes = options_.slot_bytes * options_.slots;
  auto pinned = device_->AllocatePinned(bytes);
  std::byte* slots = nullptr;
  if (pinned.ok()) {
    pinned_slots_ = *std::move(pinned);
    slots = pinned_slots_.bytes().data();
  } else {
    if (device_->lost()) return pinned.status();
    log::Warn("device_slots_not_pinned",
              {{"bytes", log::Num(bytes)}, {"reason", Message(pinned.status())}});
    plain_slots_ = std::make_unique<std::byte[]>(bytes);
    slots = plain_slots_.get();
  }
  for (uint32_t i = 0; i < options_.slots; ++i) {
    free_slots_.push_back(slots + i * options_.slot_bytes);
  }
  return OkStatus();
}

CopyLane::~CopyLane() {
  MutexLock lock(mu_);
  if (!stream_ || device_->lost()) return;
  // A Fill has no callback.
  const auto event = device_->NewEvent();
  if (!event.ok() || !stream_.Record(*event).ok()) return;
  (void)event->Synchronize();
}

void CopyLane::Submit(uint64_t device_address, std::span<std::byte> host, IoCallback done) {
  if (device_->lost()) return done(device_->LossStatus());
  auto job = std::make_shared<Job>();
  job->device_address = device_address;
  job->host = host;
  job->done = std::move(done);
  job->pinned = pins_ != nullptr && pins_->Pin(host);
  bool full = false;
  {
    MutexLock lock(mu_);
    full = line_.size() >= kMaxWaiting;
    if (!full) line_.push_back(job);
  }
  if (full) {
    job->status =
        Errorf(StatusCode::kResourceExhausted, "device tier: {} copies wait already", kMaxWaiting);
    return FinishJobs({&job, 1});
  }
  Pump();
}

Status CopyLane::Fill(uint64_t device_address, uint8_t value, uint64_t bytes) {
  MutexLock lock(mu_);
  return stream_.Fill("zero a chunk", device_address, value, bytes);
}

CopyLane::Batch CopyLane::TakeBatch() {
  Batch batch;
  uint64_t bytes = 0;
  while (!line_.empty() && batch.size() < kTasksInBatch && bytes < kBytesInBatch) {
    const JobPtr& job = line_.front();
    Piece piece{.job = job, .at = job->begun, .bytes = job->host.size() - job->begun};
    if (!job->pinned) {
      if (free_slots_.empty()) break;
      piece.slot = free_slots_.back();
      free_slots_.pop_back();
      piece.bytes = std::min(piece.bytes, options_.slot_bytes);
    }
    job->begun += piece.bytes;
    ++job->pieces;
    bytes += piece.bytes;
    batch.push_back(piece);
    if (job->begun == job->host.size()) line_.pop_front();
  }
  return batch;
}

Status CopyLane::Issue(const Batch& batch, device::Event* event) {
  // First what can fail without copies under way.
  CAIRN_ASSIGN_OR_RETURN(*event, device_->NewEvent());
  std::vector<device::CopyTask> tasks;
  tasks.reserve(batch.size());
  for (const Piece& piece : batch) {
    std::byte* const own = piece.job->host.data() + piece.at;
    if (piece.slot != nullptr) {
      detour_bytes_.fetch_add(piece.bytes, std::memory_order_relaxed);
      if (to_device()) BulkCopy(piece.slot, own, piece.bytes);
    }
    const uint64_t host = AddressOf(piece.slot != nullptr ? piece.slot : own);
    const uint64_t device = piece.job->device_address + piece.at;
    tasks.push_back(to_device() ? device::CopyTask{device, host, piece.bytes}
                                : device::CopyTask{host, device, piece.bytes});
  }
  CAIRN_RETURN_IF_ERROR(stream_.Copy(what(), tasks));
  Status recorded;
  for (int attempt = 0; attempt < kRecordAttempts; ++attempt) {
    recorded = stream_.Record(*event);
    if (recorded.ok()) return recorded;
  }
  return recorded;
}

void CopyLane::Pump() {
  for (;;) {
    Batch batch;
    device::Event event;
    Status issued;
    {
      MutexLock lock(mu_);
      if (under_way_ >= kBatchesUnderWay) return;
      batch = TakeBatch();
      if (batch.empty()) return;
      ++under_way_;
      issued = Issue(batch, &event);
    }
    if (!issued.ok()) {
      event.Release();
      Ended(batch, issued);
      continue;
    }
    poller_.Watch(std::move(event), [this, batch = std::move(batch)](const Status& status) mutable {
      Ended(batch, status);
      Pump();
    });
  }
}

void CopyLane::Ended(Batch& batch, const Status& status) {
  if (status.ok() && !to_device()) {
    for (const Piece& piece : batch) {
      if (piece.slot != nullptr) {
        std::memcpy(piece.job->host.data() + piece.at, piece.slot, piece.bytes);
      }
    }
  }
  std::vector<JobPtr> over;
  {
    MutexLock lock(mu_);
    --under_way_;
    for (const Piece& piece : batch) {
      Job& job = *piece.job;
      if (piece.slot != nullptr) free_slots_.push_back(piece.slot);
      if (!status.ok() && job.status.ok()) {
        job.status = status;
        // The rest of it is not begun any more.
        if (job.begun < job.host.size()) {
          std::erase(line_, piece.job);
          job.begun = job.host.size();
        }
      }
      if (--job.pieces == 0 && job.begun == job.host.size()) over.push_back(piece.job);
    }
  }
  FinishJobs(over);
}

void CopyLane::FinishJobs(std::span<const JobPtr> jobs) {
  for (const JobPtr& job : jobs) {
    if (job->pinned) pins_->Unpin(job->host);
    const IoCallback done = std::move(job->done);
    done(job->status);
  }
}

}  // namespace cairn::cache
