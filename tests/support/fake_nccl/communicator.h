#pragma once
// A communicator of the fake: what was called, what is under way, and bytes to and from the peer.

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/link/nccl/functions.h"
#include "tests/support/fake_nccl/meeting.h"

namespace cairn::link::fake {

// One operation of a call.
struct Operation {
  enum Kind : uint32_t { kSend, kReceive, kPut, kWait };
  Kind kind = kSend;
  unsigned char* at = nullptr;
  uint64_t bytes = 0;
  uint64_t window = 0, offset = 0;  // For a put.
  uint64_t signals = 0;             // For a wait.
  uint64_t done = 0;                // Bytes so far.
  bool begun = false, over = false;
};

// Thread-safe.
class FakeCommunicator : public std::enable_shared_from_this<FakeCommunicator> {
 public:
  FakeCommunicator(std::unique_ptr<Meeting> meeting) : meeting_(std::move(meeting)) {}

  // Whether a call may be made now; reports it if not.
  nccl::Answer MayCall(const char* name);
  nccl::Answer State();
  nccl::Answer Register(void* address, uint64_t bytes, int32_t flags, nccl::WindowHandle** window);
  // The operations of one group, in order, as one piece of work of `stream`. It goes onto the
  // stream only when its caller asks for the state, as the real library may do it.
  nccl::Answer Begin(std::vector<Operation> operations, void* stream);
  nccl::Answer CheckPut(const Operation& put, nccl::WindowHandle* window, uint64_t* number);
  void Revoke();

 private:
  struct Batch {
    std::shared_ptr<FakeCommunicator> owner;
    std::vector<Operation> operations;
    void* stream = nullptr;
    bool counted = false, stuck = false;
  };
  struct Window {
    unsigned char* address = nullptr;
    uint64_t bytes = 0;
  };
  // Before the bytes of a send or a put.
  struct Header {
    uint32_t kind = 0;
    uint64_t bytes = 0, window = 0, offset = 0;
  };

  void Issue(std::unique_ptr<Batch> batch);
  bool Progress(Batch& batch);
  void Send(Operation& operation);
  void Receive();

  std::recursive_mutex mu_;
  const std::unique_ptr<Meeting> meeting_;
  bool joined_ = false, revoked_ = false;
  bool registering_ = false;
  nccl::Answer error_ = nccl::Answer::kSuccess;
  std::vector<Window> windows_;
  std::deque<std::unique_ptr<Batch>> unissued_;
  bool issued_now_ = false;
  std::deque<Operation*> receives_;
  bool has_header_ = false;
  Header header_;
  uint64_t received_ = 0;  // Bytes behind the header.
  uint64_t signals_ = 0;
};

}  // namespace cairn::link::fake
