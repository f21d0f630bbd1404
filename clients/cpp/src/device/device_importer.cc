#include "clients/cpp/src/device/device_importer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "common/concurrency/mutex.h"

namespace cairn::client {
namespace {

constexpr uint64_t kBounceBytes = 1 << 20;
// A chunk that is unmapped waits this long for a copy that somebody gave up.
constexpr Duration kMostWait = std::chrono::seconds(30);
constexpr int kQuickTries = 200;  // Most copies are shorter than a thread needs to wake up.

// Copies from the device to the host, through pinned memory. Thread-safe: one copy at a time.
class Bounce {
 public:
  static Result<std::shared_ptr<Bounce>> Create(const std::shared_ptr<device::Device>& device) {
    std::shared_ptr<Bounce> bounce(new Bounce);
    MutexLock lock(bounce->mu_);
    CAIRN_ASSIGN_OR_RETURN(bounce->memory_, device->AllocatePinned(kBounceBytes));
    CAIRN_ASSIGN_OR_RETURN(bounce->copied_, device->NewEvent());
    CAIRN_ASSIGN_OR_RETURN(bounce->stream_, device->NewStream());
    return bounce;
  }

  Status Read(uint64_t address, std::span<const DeviceChunk::Piece> pieces, TimePoint deadline) {
    MutexLock lock(mu_);
    // A copy that the last caller gave up still writes to the pinned memory.
    CAIRN_RETURN_IF_ERROR(Await(deadline));
    uint64_t used = 0;
    for (const DeviceChunk::Piece& piece : pieces) {
      for (uint64_t at = 0; at < piece.to.size();) {
        const uint64_t bytes = std::min(piece.to.size() - at, kBounceBytes - used);
        Add(address + piece.offset + at, piece.to.subspan(at, bytes), used);
        at += bytes;
        used += bytes;
        if (used < kBounceBytes) continue;
        CAIRN_RETURN_IF_ERROR(Send(deadline));
        used = 0;
      }
    }
    return Send(deadline);
  }
  // Waits until nothing reads any chunk.
  void Settle() {
    MutexLock lock(mu_);
    (void)Await(SteadyClock::Get().Now() + kMostWait);
  }

 private:
  struct Part {
    std::span<std::byte> to;
    uint64_t from = 0;  // In memory_.
  };
  Bounce() = default;

  void Add(uint64_t from, std::span<std::byte> to, uint64_t place)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    tasks_.push_back({reinterpret_cast<uint64_t>(memory_.bytes().data()) + place, from, to.size()});
    parts_.push_back({to, place});
  }
  // Copies what was added, and waits for it.
  Status Send(TimePoint deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const std::vector<device::CopyTask> tasks = std::exchange(tasks_, {});
    const std::vector<Part> parts = std::exchange(parts_, {});
    if (tasks.empty()) return OkStatus();
    CAIRN_RETURN_IF_ERROR(stream_.Copy("read of a chunk", tasks));
    under_way_ = true;
    CAIRN_RETURN_IF_ERROR(stream_.Record(copied_));
    CAIRN_RETURN_IF_ERROR(Await(deadline));
    for (const Part& part : parts) {
      std::memcpy(part.to.data(), memory_.bytes().data() + part.from, part.to.size());
    }
    return OkStatus();
  }
  Status Await(TimePoint deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (int tries = 0; under_way_; ++tries) {
      CAIRN_ASSIGN_OR_RETURN(const bool happened, copied_.Query());
      if (happened) {
        under_way_ = false;
        break;
      }
      if (SteadyClock::Get().Now() >= deadline) {
        return Errorf(StatusCode::kDeadlineExceeded, "chunk: the GPU did not copy in time");
      }
      if (tries < kQuickTries) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
    return OkStatus();
  }

  Mutex mu_;
  device::PinnedMemory memory_ ABSL_GUARDED_BY(mu_);
  device::Event copied_ ABSL_GUARDED_BY(mu_);
  device::Stream stream_ ABSL_GUARDED_BY(mu_);
  std::vector<device::CopyTask> tasks_ ABSL_GUARDED_BY(mu_);
  std::vector<Part> parts_ ABSL_GUARDED_BY(mu_);
  bool under_way_ ABSL_GUARDED_BY(mu_) = false;
};

class ImportedChunk final : public DeviceChunk {
 public:
  ImportedChunk(device::DeviceMemory memory, uint64_t bytes, std::shared_ptr<Bounce> bounce)
      : bytes_(bytes), bounce_(std::move(bounce)), memory_(std::move(memory)) {}
  ~ImportedChunk() override { bounce_->Settle(); }
  uint64_t address() const override { return memory_.address(); }
  uint64_t bytes() const override { return bytes_; }
  Status Read(std::span<const Piece> pieces, TimePoint deadline) const override {
    return bounce_->Read(memory_.address(), pieces, deadline);
  }

 private:
  const uint64_t bytes_;
  const std::shared_ptr<Bounce> bounce_;
  const device::DeviceMemory memory_;
};

class Importer final : public DeviceImporter {
 public:
  Importer(std::shared_ptr<device::Device> device, std::shared_ptr<Bounce> bounce)
      : device_(std::move(device)), bounce_(std::move(bounce)) {}
  std::vector<std::string> uuids() const override { return {device_->info().uuid}; }
  Result<std::shared_ptr<const DeviceChunk>> Import(const std::string& uuid, int descriptor,
                                                    uint64_t bytes) override {
    if (uuid != device_->info().uuid) {
      return InvalidArgument("field 'uuid': got '{}', expected '{}'", uuid, device_->info().uuid);
    }
    CAIRN_ASSIGN_OR_RETURN(device::DeviceMemory memory, device_->Import(descriptor, bytes));
    return std::make_shared<const ImportedChunk>(std::move(memory), bytes, bounce_);
  }

 private:
  const std::shared_ptr<device::Device> device_;
  const std::shared_ptr<Bounce> bounce_;
};

}  // namespace

Result<std::shared_ptr<DeviceImporter>> NewDeviceImporter(std::shared_ptr<device::Device> device) {
  if (!device->info().exports) {
    return Errorf(StatusCode::kUnimplemented, "device {}: its memory cannot be shared",
                  device->info().ordinal);
  }
  CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<Bounce> bounce, Bounce::Create(device));
  return std::make_shared<Importer>(std::move(device), std::move(bounce));
}

}  // namespace cairn::client
