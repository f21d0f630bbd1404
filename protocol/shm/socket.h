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

// A descriptor that the destructor closes. Movable. Not thread-safe.
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

// Sends one whole packet. UNAVAILABLE: the peer is gone. RESOURCE_EXHAUSTED: the peer does not
// read, and its queue is full.
Status Send(int socket, std::span<const std::byte> message, std::span<const int> descriptors = {});
// Returns the next packet. NOT_FOUND: there is none now. UNAVAILABLE: the socket broke.
// INVALID_ARGUMENT: the packet is too long.
Result<Received> Receive(int socket);
// As Receive, but waits for a packet. DEADLINE_EXCEEDED: none came in time.
Result<Received> ReceiveBy(int socket, TimePoint deadline);

template <typename T>
std::span<const std::byte> AsBytes(const T& message) {
  return std::as_bytes(std::span(&message, 1));
}

// Makes a listening socket at `path` with these permissions. Replaces a socket there on which
// nobody listens. A socket with a listener is an error.
Result<Descriptor> Listen(const std::string& path, mode_t mode);
// Connects. UNAVAILABLE: nobody listens.
Result<Descriptor> Dial(const std::string& path);
// The user id of the process at the other end.
Result<uid_t> PeerUid(int socket);
// A descriptor of the process that connected, readable when that has ended. Not valid: it is this
// process, or the kernel gives none (before Linux 5.3).
Descriptor PeerProcess(int socket);

}  // namespace cairn::shm
