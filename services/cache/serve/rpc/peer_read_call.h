#pragma once
// The stream of one Read call of another member: one frame at a time with gRPC, and no thread that
// waits for a slow reader.

#include <grpc/grpc.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>

#include "cairn/v1/peer.pb.h"
#include "common/rpc/call.h"
#include "common/rpc/call_reactor.h"
#include "common/rpc/stream_set.h"
#include "services/cache/cluster/members/peer_host.h"
#include "services/cache/cluster/peer/block_moves.h"
#include "services/cache/serve/rpc/rpc_context.h"

namespace cairn::cache {

class PeerReadCall;

// The state that the reads of other members share. A frame is a copy of its bytes, so the frames on
// their way have at most the gate's places times the size of a frame, and need no budget of bytes.
struct PeerReads {
  RpcContext* rpc = nullptr;
  rpc::Method* method = nullptr;
  PeerHost* host = nullptr;
  BlockLender* lender = nullptr;  // nullptr: blocks go as streams alone.
  Executor* executor = nullptr;   // Waits for the disk.
  Gate* gate = nullptr;           // Reads under way.
  std::string limit;              // The setting that bounds the gate.
  // The caller, if it may call.
  std::function<Result<PeerCaller>(const rpc::Call& call, const v1::PeerCaller& caller)> caller;
  rpc::StreamSet<PeerReadCall> open;

  // Cuts off readers that take nothing. Some times a second.
  void Tick();
};

// Owns itself from Start until gRPC is done with it. One thread at a time drives it: whoever is
// told that the last wait is over. Only Tick comes from aside.
class PeerReadCall final : public rpc::CallReactor {
 public:
  // `reads` outlives the server.
  static void Start(PeerReads* reads, std::unique_ptr<rpc::RawCall> raw,
                    const grpc::ByteBuffer& request);
  PeerReadCall(PeerReads* reads, std::unique_ptr<rpc::RawCall> raw);
  ~PeerReadCall() override { grpc_call_unref(grpc_call_); }

  // Ends the call if its reader has not taken a frame for longer than rpc.fetch_stall, or for a
  // while if another member was turned away because of it.
  void Tick();

 private:
  Status Begin(const grpc::ByteBuffer& request);
  // Lends the block to `member`, if it lies in the device tier; else, or if that fails, streams it.
  void LendOrOpen(const std::string& member);
  // Sends the block once it can be read. `deadline`: how long this thread may wait for it.
  void Open(TimePoint deadline);
  void SendNext();
  void End(const Status& status);
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  PeerReads& reads_;
  rpc::Call call_;
  grpc_call* const grpc_call_;  // A reference of its own: Tick may cancel while gRPC ends the call.
  std::shared_ptr<PeerReadCall> self_;
  Gate::Pass place_;
  std::unique_ptr<PeerHost::Read> read_;
  std::optional<StoredBlock> block_;
  size_t part_ = 0, at_ = 0;
  v1::PeerReadFrame message_;
  grpc::ByteBuffer frame_;  // Belongs to gRPC while a write is under way.

  Mutex mu_;
  std::optional<TimePoint> writing_since_ ABSL_GUARDED_BY(mu_);
  bool cut_off_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::cache
