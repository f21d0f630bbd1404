#pragma once
// Reserve, stream and commit: the write path of the client.

#include <grpcpp/generic/generic_stub.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/v1/cache.grpc.pb.h"
#include "clients/cpp/src/grpc/release_queue.h"
#include "clients/cpp/src/grpc/session.h"

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
  Pusher(const Channels& channels, Session::Current session, const Digest& fingerprint,
         const PushOptions& options, TimePoint deadline);

  // One status per part. After an error of the node itself the remaining parts have it too, and
  // `node` is set to it.
  std::vector<Status> Push(std::span<const PartToPush> parts, Status* node);

 private:
  struct Filled {
    size_t part = 0;  // Index in the group.
    uint64_t reservation = 0;
  };
  // Each returns an error of the whole call, and else fills in the statuses of single parts.
  Status PushGroup(std::span<const PartToPush> parts, std::span<Status> results);
  Status Reserve(std::span<const PartToPush> parts, std::span<Status> results,
                 std::vector<Filled>* reserved);
  // Sends the bytes, and has them committed at the end of the stream by a node that can.
  Status Stream(std::span<const PartToPush> parts, const std::vector<Filled>& reserved,
                std::span<Status> results, bool* committed);
  Status Commit(const std::vector<Filled>& reserved, std::span<Status> results);

  static Status TakeResults(const google::protobuf::RepeatedPtrField<v1::PartResult>& from,
                            const std::vector<Filled>& reserved, std::span<Status> results);

  const Channels channels_;
  const Session::Current session_;
  const Digest fingerprint_;
  const PushOptions& options_;
  const TimePoint deadline_;
};

}  // namespace cairn::client
