#include "tests/support/fake_nccl/communicator.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "tests/support/fake_device/control.h"
#include "tests/support/fake_nccl/actions.h"

namespace cairn::link::fake {
namespace {

using nccl::Answer;

// The fake device of this process, which lies next to this library.
const device::fake::FakeControl& Device() {
  static const device::fake::FakeControl* const device = [] {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&Device), &info);
    const auto path =
        std::filesystem::path(info.dli_fname).parent_path() / "libcairn_fake_device.so";
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto get = reinterpret_cast<device::fake::GetFakeControl>(
        dlsym(library, device::fake::kGetFakeControl));
    return get(device::fake::kControlVersion);
  }();
  return *device;
}

}  // namespace

Answer FakeCommunicator::MayCall(const char* name) {
  std::lock_guard lock(mu_);
  const char* wrong = nullptr;
  if (revoked_) wrong = "after the communicator was revoked";
  if (!joined_ || registering_ || !unissued_.empty()) wrong = "while it is in progress";
  if (wrong == nullptr) return Answer::kSuccess;
  Actions::Get().Report(std::string(name) + " is called " + wrong);
  return Answer::kInvalidUsage;
}

Answer FakeCommunicator::State() {
  std::deque<std::unique_ptr<Batch>> issue;
  {
    std::lock_guard lock(mu_);
    if (error_ != Answer::kSuccess) return error_;
    if (Actions::Get().Has("remote_error") && !meeting_->peer_lives()) return Answer::kRemoteError;
    if (!joined_) {
      joined_ = meeting_->both();
      return joined_ ? Answer::kSuccess : Answer::kInProgress;
    }
    if (registering_) {
      registering_ = meeting_->PeerWindows() < windows_.size();
      return registering_ ? Answer::kInProgress : Answer::kSuccess;
    }
    issue.swap(unissued_);
  }
  for (auto& batch : issue) Issue(std::move(batch));
  return issue.empty() ? Answer::kSuccess : Answer::kInProgress;
}

Answer FakeCommunicator::Register(void* address, uint64_t bytes, int32_t flags,
                                  nccl::WindowHandle** window) {
  std::lock_guard lock(mu_);
  if (flags != nccl::kSymmetric) Actions::Get().Report("a window is not symmetric");
  windows_.push_back({static_cast<unsigned char*>(address), bytes});
  meeting_->SetWindows(static_cast<uint32_t>(windows_.size()));
  registering_ = true;
  // A handle is the number of its window, from 1 on.
  *window = Actions::Get().Has("no_windows")
                ? nullptr
                : reinterpret_cast<nccl::WindowHandle*>(windows_.size());
  return Answer::kInProgress;
}

Answer FakeCommunicator::CheckPut(const Operation& put, nccl::WindowHandle* window,
                                  uint64_t* number) {
  std::lock_guard lock(mu_);
  *number = reinterpret_cast<uint64_t>(window);
  const bool from_window = std::any_of(windows_.begin(), windows_.end(), [&put](const Window& own) {
    return put.at >= own.address && put.at + put.bytes <= own.address + own.bytes;
  });
  if (*number == 0 || *number > windows_.size() || !from_window) {
    Actions::Get().Report("a put from or to no window");
    return Answer::kInvalidArgument;
  }
  --*number;
  return Actions::Get().Has("no_puts") ? Answer::kInvalidArgument : Answer::kSuccess;
}

Answer FakeCommunicator::Begin(std::vector<Operation> operations, void* stream) {
  std::lock_guard lock(mu_);
  auto batch = std::make_unique<Batch>();
  batch->operations = std::move(operations);
  batch->stream = stream;
  unissued_.push_back(std::move(batch));
  return Answer::kInProgress;
}

void FakeCommunicator::Issue(std::unique_ptr<Batch> batch) {
  batch->owner = shared_from_this();
  std::vector<device::fake::Range> reads, writes;
  for (const Operation& operation : batch->operations) {
    // Where the peer will put is known only then.
    if (operation.kind == Operation::kWait) continue;
    (operation.kind == Operation::kReceive ? writes : reads)
        .push_back({reinterpret_cast<uint64_t>(operation.at), operation.bytes});
  }
  void* const stream = batch->stream;
  // Outside of the lock: the device asks `ready` under its own.
  (void)Device().issue_when(
      stream, "NCCL", reads.data(), reads.size(), writes.data(), writes.size(),
      [](void* context) {
        auto& asked = *static_cast<Batch*>(context);
        return asked.owner->Progress(asked);
      },
      [](void*) {}, [](void* context) { delete static_cast<Batch*>(context); }, batch.release());
}

// Whether all of it has ended.
bool FakeCommunicator::Progress(Batch& batch) {
  std::lock_guard lock(mu_);
  if (revoked_) return true;
  if (batch.stuck) return false;
  bool over = true;
  for (Operation& operation : batch.operations) {
    const bool receives = operation.kind == Operation::kReceive;
    if (receives && !std::exchange(operation.begun, true)) receives_.push_back(&operation);
    if (operation.kind == Operation::kWait && signals_ >= operation.signals &&
        !std::exchange(operation.over, true)) {
      signals_ -= operation.signals;
    }
    if ((operation.kind == Operation::kSend || operation.kind == Operation::kPut) && over) {
      Send(operation);
    }
    over = over && operation.over;
  }
  Receive();
  // Here some bytes are on their way, and usually not all.
  if (!std::exchange(batch.counted, true)) batch.stuck = !Actions::Get().Work();
  return over && !batch.stuck;
}

void FakeCommunicator::Send(Operation& operation) {
  if (operation.over) return;
  if (!operation.begun) {
    const Header header{operation.kind, operation.bytes, operation.window, operation.offset};
    if (meeting_->Room() < sizeof(header)) return;
    meeting_->Write(&header, sizeof(header));
    operation.begun = true;
  }
  operation.done +=
      meeting_->Write(operation.at + operation.done, operation.bytes - operation.done);
  operation.over = operation.done == operation.bytes;
}

// Takes what has come, as far as somebody waits for it.
void FakeCommunicator::Receive() {
  while (error_ == Answer::kSuccess) {
    if (!has_header_) {
      if (meeting_->Readable() < sizeof(header_)) return;
      meeting_->Read(&header_, sizeof(header_));
      has_header_ = true;
      received_ = 0;
    }
    unsigned char* at = nullptr;
    if (header_.kind == Operation::kPut) {
      if (header_.window >= windows_.size() ||
          header_.offset + header_.bytes > windows_[header_.window].bytes) {
        Actions::Get().Report("the peer puts beyond a window");
        error_ = Answer::kInvalidUsage;
        return;
      }
      at = windows_[header_.window].address + header_.offset;
    } else {
      if (receives_.empty()) return;
      if (receives_.front()->bytes != header_.bytes) {
        Actions::Get().Report("a receive of " + std::to_string(receives_.front()->bytes) +
                              " bytes, and the peer sends " + std::to_string(header_.bytes));
        error_ = Answer::kInvalidUsage;
        return;
      }
      at = receives_.front()->at;
    }
    received_ += meeting_->Read(at + received_, header_.bytes - received_);
    if (received_ < header_.bytes) return;
    has_header_ = false;
    if (header_.kind == Operation::kPut) {
      ++signals_;
    } else {
      receives_.front()->over = true;
      receives_.pop_front();
    }
  }
}

void FakeCommunicator::Revoke() {
  std::lock_guard lock(mu_);
  revoked_ = true;
  unissued_.clear();
}

}  // namespace cairn::link::fake
