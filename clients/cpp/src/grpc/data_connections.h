#pragma once
// The connections that carry a client's bytes.

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "common/concurrency/mutex.h"
#include "common/rpc/channel.h"

namespace cairn::client {

// Spreads calls over connections: gRPC reads and writes one of them by one thread at a time, which
// takes a core long before the wire is full. A call gets the least busy one, or the first of
// several, so a caller that makes one call after the other opens only one. Thread-safe. It must
// outlive its uses.
class DataConnections {
 public:
  // At least one channel; they may be unconnected.
  explicit DataConnections(std::vector<std::shared_ptr<grpc::Channel>> channels);

  // A call's share of a connection, until it is destroyed.
  class Use {
   public:
    Use(Use&& other) noexcept;
    Use& operator=(Use&&) = delete;
    ~Use();
    grpc::GenericStub* stub() const { return stub_; }
    size_t index() const { return index_; }

   private:
    friend class DataConnections;
    Use(DataConnections* owner, size_t index, grpc::GenericStub* stub)
        : owner_(owner), index_(index), stub_(stub) {}

    DataConnections* owner_;  // Null after a move.
    size_t index_;
    grpc::GenericStub* stub_;
  };
  Use Take();

 private:
  struct Connection {
    std::unique_ptr<grpc::GenericStub> stub;
    std::unique_ptr<rpc::Reconnect> reconnect;
    size_t calls = 0;  // Under way.
  };

  Mutex mu_;
  // Their number and stubs never change.
  std::vector<Connection> connections_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::client
