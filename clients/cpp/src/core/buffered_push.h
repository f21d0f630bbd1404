#pragma once
// InPlacePush for a client that cannot reach the node's memory: the rooms are buffers of the
// client, and Commit is a Push.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "cairn/client/cache_client.h"
#include "common/concurrency/mutex.h"

namespace cairn::client {

// Buffers for parts, which are used again after the network has released them. New memory for each
// part would cost more in page faults than the copy itself. Keeps at most max_idle_bytes that
// nobody uses. Thread-safe.
class PartBuffers : public std::enable_shared_from_this<PartBuffers> {
 public:
  explicit PartBuffers(size_t max_idle_bytes) : max_idle_bytes_(max_idle_bytes) {}

  // `bytes` at a multiple of 64. Goes back when the last reference is dropped, on any thread. Its
  // bytes are those of its last use.
  std::shared_ptr<std::byte> Take(size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  struct Idle {
    std::unique_ptr<std::byte, Free> memory;
    size_t bytes = 0;
  };

  void Return(Idle buffer);

  const size_t max_idle_bytes_;
  Mutex mu_;
  std::vector<Idle> idle_ ABSL_GUARDED_BY(mu_);
  size_t idle_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

// `client` outlives it. `parts` are copied.
std::unique_ptr<InPlacePush> NewBufferedPush(CacheClient& client, const Digest& fingerprint,
                                             std::span<const PartToWrite> parts,
                                             const PushOptions& options, PartBuffers& buffers);

}  // namespace cairn::client
