#pragma once
// The stream of one Read call of another member: one frame at a time with gRPC, and no thread that
// waits for a slow reader.

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>

#include "cairn/v1/peer.pb.h"
#include "common/rpc/call.h"
#include "common/rpc/call_reactor.h"
#include "services/cache/cluster/peer_host.h"
#include "services/cache/rpc/rpc_context.h"

namespace cairn::cache {

// What the reads of other members share.
struct PeerReads {
  RpcContext* rpc = nullptr;
  rpc::Method* method = nullptr;
  PeerHost* host = nullptr;
  Executor* executor = nullptr;  // Waits for the disk.
  Gate* gate = nullptr;          // Reads under way.
  std::string limit;             // The setting that bounds the gate.
  // Who calls, if he may.
  std::function<Result<PeerCaller>(const rpc::Call& call, const v1::PeerCaller& caller)> caller;
};

// Owns itself from Start until gRPC is done with it. One thread at a time drives it: whoever is
// told that the last wait is over.
class PeerReadCall final : public rpc::CallReactor {
 public:
  // `reads` outlives the server.
  static void Start(const PeerReads* reads, std::unique_ptr<rpc::RawCall> raw,
                    const grpc::ByteBuffer& request);

 private:
  PeerReadCall(const PeerReads* reads, std::unique_ptr<rpc::RawCall> raw);

  Status Begin(const grpc::ByteBuffer& request);
  // Sends the block once it can be read. `deadline`: how long this thread may wait for it.
  void Open(TimePoint deadline);
  void SendNext();
  void End(const Status& status);
  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

  const PeerReads& reads_;
  rpc::Call call_;
  Gate::Pass place_;
  std::unique_ptr<PeerHost::Read> read_;
  std::optional<StoredBlock> block_;
  size_t part_ = 0, at_ = 0;
  v1::PeerReadFrame message_;
  grpc::ByteBuffer frame_;  // Belongs to gRPC while a write is under way.
};

}  // namespace cairn::cache
