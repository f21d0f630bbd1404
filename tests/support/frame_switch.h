#pragma once
// An Ethernet switch in user space, for what the kernel of many test machines cannot do: links with
// delay, jitter, reordered and duplicated frames. Its ports are TAP devices.

#include <chrono>
#include <cstdint>
#include <memory>
#include <queue>
#include <random>
#include <thread>
#include <vector>

#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "tests/support/network_namespace.h"

namespace cairn::testing {

// The delay of the frames from one port to another one.
struct LinkDelay {
  std::chrono::microseconds least{0};
  std::chrono::microseconds jitter{0};  // Up to this much more, evenly spread.
  // Frames of 1,000. A reordered one takes `least` once more, and others overtake it. The others
  // keep their order.
  uint32_t reordered = 0;
  uint32_t duplicated = 0;
};

// Forwards frames in a thread of its own. Thread-safe.
class FrameSwitch {
 public:
  // The Ethernet address that the station at a port must have; frames go where their address says.
  static std::string StationAddress(size_t port);
  // A new TAP device in the calling thread's network namespace, which goes with the descriptor.
  // PERMISSION_DENIED or NOT_FOUND: this process may not, or the machine has none.
  static Result<OwnedFd> MakeTap(const std::string& name);

  // Equal seeds choose the same for the same frames.
  FrameSwitch(std::vector<OwnedFd> taps, const LinkDelay& delay, uint64_t seed);
  ~FrameSwitch();
  FrameSwitch(const FrameSwitch&) = delete;

  // For frames that come from now on.
  void SetDelay(size_t from, size_t to, const LinkDelay& delay);

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Link {
    LinkDelay delay;
    Time last{};  // When the last frame leaves that keeps the order.
  };
  struct Frame {
    Time due;
    uint64_t number = 0;  // Frames of one time leave in the order in which they came.
    size_t to = 0;
    std::shared_ptr<const std::vector<char>> bytes;
    bool operator<(const Frame& other) const {
      return due != other.due ? due > other.due : number > other.number;
    }
  };

  void Forward();
  void Receive(size_t from);
  void Enqueue(size_t from, size_t to, const std::shared_ptr<const std::vector<char>>& bytes);
  // Sends what is due. Returns how long the next frame has to wait; below zero: there is none.
  std::chrono::nanoseconds SendDue();
  Link& LinkOf(size_t from, size_t to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return links_[from * taps_.size() + to];
  }

  const std::vector<OwnedFd> taps_;
  const OwnedFd stop_;  // An eventfd.
  Mutex mu_;
  std::vector<Link> links_ ABSL_GUARDED_BY(mu_);
  // Used by the thread.
  std::mt19937_64 random_;
  std::priority_queue<Frame> waiting_;
  size_t waiting_bytes_ = 0;
  uint64_t next_number_ = 0;
  std::thread thread_;
};

}  // namespace cairn::testing
