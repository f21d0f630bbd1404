#pragma once
// Messages and descriptors over a Unix socket of packets.

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"

namespace cairn::shm {

// A descriptor that is closed at the end. Movable.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { Reset(); }
  Descriptor(Descriptor&& other) noexcept : fd_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = other.Release();
    }
    return *this;
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void Reset();

 private:
  int fd_ = -1;
};

struct Received {
  std::vector<std::byte> message;  // Empty: the peer hung up.
  std::vector<Descriptor> descriptors;
};

// Sends one packet whole. UNAVAILABLE: the peer is gone. RESOURCE_EXHAUSTED: it does not read, and
// its queue is full.
Status Send(int socket, std::span<const std::byte> message, std::span<const int> descriptors = {});
// The next packet. NOT_FOUND: none is there now. UNAVAILABLE: the socket broke. INVALID_ARGUMENT:
// too long.
Result<Received> Receive(int socket);
// Receive that waits. DEADLINE_EXCEEDED.
Result<Received> ReceiveBy(int socket, TimePoint deadline);

template <typename T>
std::span<const std::byte> AsBytes(const T& message) {
  return std::as_bytes(std::span(&message, 1));
}

// A listening socket at `path` with these permissions; a dead one that lies there is replaced, a
// live one is an error.
Result<Descriptor> Listen(const std::string& path, mode_t mode);
// Connects. UNAVAILABLE when nobody listens.
Result<Descriptor> Dial(const std::string& path);
// The user id of the process at the other end.
Result<uid_t> PeerUid(int socket);

}  // namespace cairn::shm
