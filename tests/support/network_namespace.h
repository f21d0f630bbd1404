#pragma once
// Network namespaces without names: such a namespace ends when its last descriptor is closed and
// the last process in it has ended, so a test that is killed leaves none behind.

#include <functional>
#include <string>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::testing {

// An open file, closed with the object. Moves like a pointer.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept;
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  ~OwnedFd();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// One network namespace. Const calls are thread-safe.
class NetworkNamespace {
 public:
  // A new one, whose loopback is up. PERMISSION_DENIED: this process may not.
  static Result<NetworkNamespace> Create();
  // That of the calling thread.
  static Result<NetworkNamespace> Current();

  int fd() const { return fd_.get(); }
  // By which other processes find it: `ip link add ... netns PATH`.
  std::string path() const;
  // Runs `function` in a thread of its own inside the namespace, and returns after it. Sockets that
  // it makes stay in the namespace wherever they are used later.
  void Run(const std::function<void()>& function) const;
  // Runs a program, such as {"ip", "link", "set", "lo", "up"}, in the namespace until it ends.
  // INTERNAL with what it wrote to stderr if it fails.
  Status Command(const std::vector<std::string>& command) const;

 private:
  explicit NetworkNamespace(OwnedFd fd) : fd_(std::move(fd)) {}
  OwnedFd fd_;
};

// While it exists, the calling thread is in the namespace, and so are the processes and threads
// that it starts: for helpers that start processes themselves (WorkerProcess::Start). Not for
// clients of gRPC, whose threads outlive it.
class InNetwork {
 public:
  explicit InNetwork(const NetworkNamespace& network);
  ~InNetwork();
  InNetwork(const InNetwork&) = delete;

 private:
  const NetworkNamespace before_;
};

// Where a system program lies: "/usr/sbin/ip". Empty: it is not installed.
std::string FindProgram(const std::string& name);

// Moves the calling thread into a new network namespace, and with it all threads and processes that
// it starts from then on. A user without the right to do so becomes root of a new user namespace
// first, which works only while the process has one thread. PERMISSION_DENIED: neither is permitted
// here.
Status EnterOwnNetwork();

}  // namespace cairn::testing
