#pragma once
// A TCP relay in front of a cache node that does something to the node at an exact byte of what it
// sends, so that "in the middle of a fetch" is not a matter of luck.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"

namespace cairn::cli {

// Forwards bytes between clients and 127.0.0.1:target_port. Thread-safe.
class TcpRelay {
 public:
  // Listens on a free port. INTERNAL when there is none. Nobody needs to listen at the target yet.
  static Result<std::unique_ptr<TcpRelay>> Start(const std::string& target);
  ~TcpRelay();
  TcpRelay(const TcpRelay&) = delete;
  TcpRelay& operator=(const TcpRelay&) = delete;

  // "127.0.0.1:PORT": connect here.
  const std::string& address() const { return address_; }
  // Connections from now on go there.
  void SetTarget(const std::string& target);
  // When `bytes` more bytes have come from the node: `action`, once, on a thread of the relay,
  // before the next one of their connection is forwarded.
  void After(uint64_t bytes, std::function<void()> action);
  // For actions. Bytes that the node had sent before it was stopped or killed would still arrive,
  // out of the kernel's buffers: these keep them back.
  void Hold();  // Nothing of the node's is forwarded any more, until Release.
  void Release();
  void BreakAll();  // Closes all connections.
  // Whether the action has run.
  bool Triggered() const;
  uint64_t bytes_from_node() const { return from_node_.load(); }

 private:
  struct Connection;
  TcpRelay(int listener, std::string address, std::string target);
  void Accept();
  void Forward(Connection* connection, int from, int to, bool from_node);
  void CountFromNode(uint64_t bytes);

  const int listener_;
  const std::string address_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> from_node_{0};

  mutable Mutex mu_;
  CondVar changed_;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  std::string target_ ABSL_GUARDED_BY(mu_);
  uint64_t trigger_at_ ABSL_GUARDED_BY(mu_) = 0;
  std::function<void()> action_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Connection>> connections_ ABSL_GUARDED_BY(mu_);
  std::thread acceptor_;
};

}  // namespace cairn::cli
