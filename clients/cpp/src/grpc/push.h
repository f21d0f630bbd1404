#pragma once
// Reserve, stream and commit: the write path of the client.

#include <grpcpp/generic/generic_stub.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/v1/cache.grpc.pb.h"
#include "clients/cpp/src/core/release_queue.h"
#include "clients/cpp/src/core/transport.h"

namespace cairn::client {

// One Push call. Parts go in groups, so that a long push holds little of the node's reservation
// budget at a time. Used by one thread.
class Pusher {
 public:
  struct Channels {
    v1::Cache::Stub* control = nullptr;
    grpc::GenericStub* data = nullptr;
    ReleaseQueue* releases = nullptr;  // Takes back what could not be filled.
  };
  // All outlive it.
  Pusher(const Channels& channels, const TransportCall& call, const Digest& fingerprint,
         const PushOptions& options);

  // After an error of the node itself the remaining parts have it too.
  PushReport Push(std::span<const PartToPush> parts);

 private:
  struct Filled {
    size_t part = 0;  // Index in the group.
    uint64_t reservation = 0;
  };
  // Each returns an error of the whole call, and else fills in the statuses of single parts.
  Status PushGroup(std::span<const PartToPush> parts, std::span<Status> results);
  Result<std::vector<Filled>> Reserve(std::span<const PartToPush> parts, std::span<Status> results);
  // Sends the bytes, and has them committed at the end of the stream by a node that can. Returns
  // whether they were.
  Result<bool> Stream(std::span<const PartToPush> parts, const std::vector<Filled>& reserved,
                      std::span<Status> results);
  Status Commit(const std::vector<Filled>& reserved, std::span<Status> results);

  static Status TakeResults(const google::protobuf::RepeatedPtrField<v1::PartResult>& from,
                            const std::vector<Filled>& reserved, std::span<Status> results);

  const Channels channels_;
  const SessionInfo& session_;
  const Digest& fingerprint_;
  const PushOptions& options_;
  const TimePoint deadline_;
};

}  // namespace cairn::client
