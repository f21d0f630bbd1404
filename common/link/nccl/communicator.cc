#include "common/link/nccl/communicator.h"

#include <atomic>
#include <cstring>
#include <utility>

namespace cairn::link::nccl {
namespace {

void* Pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// The operation that was begun last goes through these steps, one Poll at a time:
//
//   kCalled    NCCL works on it in the background: its state is "in progress". Until it is not, no
//              other call and nothing on the stream is allowed
//   kWindows   (joining only) one window after the other is registered, each of them kCalled
//   kRecorded  an event behind it on the stream has not happened yet
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<const Library> library, std::shared_ptr<device::Device> device,
                   const UniqueId& id, int rank, std::vector<CommunicatorMaker::Window> windows)
      : library_(std::move(library)),
        nccl_(library_->functions()),
        device_(std::move(device)),
        rank_(rank),
        windows_(std::move(windows)) {
    static_assert(sizeof(id_) == sizeof(id));
    std::memcpy(&id_, id.data(), sizeof(id_));
  }

  Status Join() override {
    // NCCL takes the device that is current on this thread, and this call makes ours current.
    CAIRN_RETURN_IF_ERROR(device_->GetMemoryState().status());
    CAIRN_ASSIGN_OR_RETURN(stream_, device_->NewStream());
    CAIRN_ASSIGN_OR_RETURN(event_, device_->NewEvent());
    if (over_) return Over();
    Config config;
    config.blocking = 0;
    return Call(nccl_.comm_init_rank_config(&communicator_, 2, id_, rank_, &config),
                "ncclCommInitRankConfig");
  }

  Status Issue(const Move& move) override {
    joined_ = true;
    recorded_ = false;
    const int32_t peer = 1 - rank_;
    if (move.way == Way::kPut && move.receives) {
      WaitDescription wait{.operations = static_cast<int32_t>(move.parts.size()), .peer = peer};
      return Call(nccl_.wait_signal(1, &wait, communicator_, stream_.native()), "ncclWaitSignal");
    }
    CAIRN_RETURN_IF_ERROR(Call(nccl_.group_start(), "ncclGroupStart"));
    Status status;
    for (const Move::Part& part : move.parts) {
      status = IssueOne(move, part, peer);
      if (!status.ok()) break;
    }
    // In any case: an open group would take in the next calls of this thread.
    const Status ended = Call(nccl_.group_end(), "ncclGroupEnd");
    return status.ok() ? ended : status;
  }

  Result<bool> Poll() override {
    if (recorded_) {
      const Result<bool> happened = event_.Query();
      if (!happened.ok() || *happened) return happened;
      // It may never happen: NCCL learns of some errors while the move is under way.
      CAIRN_RETURN_IF_ERROR(InProgress().status());
      return false;
    }
    CAIRN_ASSIGN_OR_RETURN(const bool in_progress, InProgress());
    if (in_progress) return false;
    if (!joined_) return RegisterNext();
    CAIRN_RETURN_IF_ERROR(stream_.Record(event_));
    recorded_ = true;
    return event_.Query();
  }

  bool puts() const override { return puts_; }

  void Revoke() override {
    over_ = true;
    if (communicator_ != nullptr) (void)nccl_.comm_revoke(communicator_, 0);
  }
  void Abort() override {
    if (communicator_ != nullptr) (void)nccl_.comm_abort(communicator_);
    // Kernels of the library have left the stream when what stands behind them has happened.
    if (stream_ && event_ && stream_.Record(event_).ok()) (void)event_.Synchronize();
    event_.Release();
    stream_.Release();
  }

 private:
  Status Call(Answer answer, const char* name) const { return library_->ToStatus(answer, name); }

  // Whether NCCL still works on a call in the background. An error: of the communicator.
  Result<bool> InProgress() {
    Answer state = Answer::kSuccess;
    CAIRN_RETURN_IF_ERROR(
        Call(nccl_.comm_get_async_error(communicator_, &state), "ncclCommGetAsyncError"));
    CAIRN_RETURN_IF_ERROR(library_->ToStatus(state, "the communicator"));
    return state == Answer::kInProgress;
  }
  static Status Over() { return Errorf(StatusCode::kUnavailable, "the communicator is revoked"); }

  Status IssueOne(const Move& move, const Move::Part& part, int32_t peer) {
    if (over_) return Over();
    void* const at = Pointer(part.address);
    void* const stream = stream_.native();
    if (move.receives) {
      return Call(nccl_.recv(at, part.bytes, kUint8, peer, communicator_, stream), "ncclRecv");
    }
    if (move.way == Way::kSend) {
      return Call(nccl_.send(at, part.bytes, kUint8, peer, communicator_, stream), "ncclSend");
    }
    if (part.window >= registered_.size()) {
      return Errorf(StatusCode::kInternal, "window {}: there are {}", part.window,
                    registered_.size());
    }
    return Call(nccl_.put_signal(at, part.bytes, kUint8, peer, registered_[part.window],
                                 part.offset, 0, 0, 0, communicator_, stream),
                "ncclPutSignal");
  }

  // Registration is collective: both ranks register as many, in the same order.
  Result<bool> RegisterNext() {
    if (registered_.size() == windows_.size()) {
      puts_ = !registered_.empty();
      // Where windows are not supported, NCCL gives none, on both ranks.
      for (const WindowHandle* window : registered_) puts_ = puts_ && window != nullptr;
      return true;
    }
    // The library may fill it in later: it has a place that does not move.
    if (registered_.capacity() < windows_.size()) registered_.reserve(windows_.size());
    const CommunicatorMaker::Window& window = windows_[registered_.size()];
    registered_.push_back(nullptr);
    CAIRN_RETURN_IF_ERROR(
        Call(nccl_.comm_window_register(communicator_, Pointer(window.address), window.bytes,
                                        &registered_.back(), kSymmetric),
             "ncclCommWindowRegister"));
    return false;
  }

  const std::shared_ptr<const Library> library_;
  const Functions& nccl_;
  const std::shared_ptr<device::Device> device_;
  UniqueIdBytes id_;
  const int rank_;
  const std::vector<CommunicatorMaker::Window> windows_;
  device::Stream stream_;
  device::Event event_;
  CommHandle* communicator_ = nullptr;
  std::vector<WindowHandle*> registered_;
  bool joined_ = false, recorded_ = false, puts_ = false;
  // A call that hung must not lead to the next one when it comes back.
  std::atomic<bool> over_{false};
};

}  // namespace

Result<UniqueId> Maker::NewId() {
  UniqueIdBytes bytes;
  CAIRN_RETURN_IF_ERROR(
      library_->ToStatus(library_->functions().get_unique_id(&bytes), "ncclGetUniqueId"));
  UniqueId id;
  static_assert(sizeof(id) == sizeof(bytes));
  std::memcpy(id.data(), &bytes, sizeof(bytes));
  return id;
}

std::shared_ptr<Communicator> Maker::Make(const UniqueId& id, int rank,
                                          std::vector<Window> windows) {
  return std::make_shared<NcclCommunicator>(library_, device_, id, rank, std::move(windows));
}

}  // namespace cairn::link::nccl
