#pragma once
// The stream of one Fetch call: one frame at a time with gRPC, so that a slow reader holds one
// frame and no more.

#include <grpc/grpc.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <optional>

#include "common/memory/fair_budget.h"
#include "common/rpc/call.h"
#include "common/rpc/call_reactor.h"
#include "common/rpc/stream_set.h"
#include "protocol/frames/fetch_frame_writer.h"
#include "services/cache/serve/rpc/lookup.h"
#include "services/cache/serve/rpc/rpc_context.h"
#include "services/cache/store/engine/cache_engine.h"

namespace cairn::cache {

class FetchCall;

// The state that the fetches of a node share.
struct FetchCalls {
  // `shared_lookups` outlives it.
  FetchCalls(uint64_t budget_bytes, Lookups* shared_lookups)
      : budget(std::make_shared<FairBudget>(budget_bytes)), lookups(shared_lookups) {}
  rpc::StreamSet<FetchCall> open;
  // Bounds the bytes that all fetches together are sending. Each connection is a party. gRPC lets
  // go of a frame's bytes in its own time, even after the service has ended.
  const std::shared_ptr<FairBudget> budget;
  Lookups* const lookups;
};

// Frames are built on the poller, as long as nothing must be waited for; waiting for disk goes to
// the fetch executor, waiting for a source in a lookup or for room in the budget holds no thread.
// Owns itself from Start until gRPC is done with it.
//
// One thread at a time drives it (Step): whoever is told that the last wait is over. Only Tick and
// OnCancel come from aside.
class FetchCall final : public rpc::CallReactor, private FairBudget::Waiter {
 public:
  // `all` outlives the server.
  static void Start(RpcContext* rpc, rpc::Method* method, FetchCalls* all,
                    std::unique_ptr<rpc::RawCall> call, const grpc::ByteBuffer& request);
  FetchCall(RpcContext* rpc, rpc::Method* method, FetchCalls* all,
            std::unique_ptr<rpc::RawCall> call);
  ~FetchCall() override;

  // Ends the call where its reader has not taken a frame for longer than rpc.fetch_stall, or, where
  // its lease is over or others wait for room that it holds, than RpcOptions says.
  void Tick();

 private:
  enum class Wait { kNone, kRoom, kDisk };

  Status Begin(const grpc::ByteBuffer& request);
  // Adds the item to the frame. False: the frame is full, and has some of it at most.
  bool AddItem();
  // Puts the answer to the lookup into the first frame, and keeps its lease.
  void TakeMatch(Result<MatchResult> result, bool waited);
  // Begins to send the blocks of the lease, if there is one.
  void Open();
  // Builds and sends the next frame, or begins to wait for what it needs.
  void Step(Wait after);  // After kRoom it uses room_.
  // Fills the frame with what is there. False: nothing is, and the stream has not ended.
  bool Fill();
  // The next item into item_, waiting until `deadline`. False: it is not there yet.
  bool Advance(TimePoint deadline);
  void WaitForDisk();
  void End(const Status& status);
  void OnRoom(ByteShare room) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  RpcContext* const rpc_;
  FetchCalls* const all_;
  rpc::Call call_;
  const std::string connection_;
  grpc_call* const grpc_call_;  // A reference of its own: Tick may cancel while gRPC ends the call.
  std::shared_ptr<FetchCall> self_;

  // Owned by the thread that drives it.
  ByteShare room_;  // It came while the call waited.
  std::unique_ptr<FetchStream> stream_;
  FetchRequest
      wanted_;  // Its rows, if any, are those of the request, gone once the stream is there.
  std::optional<LeaseId> own_lease_;  // The lease of a lookup; ends with the call.
  frames::FetchFrameWriter writer_;
  std::optional<FetchStream::Item> item_;  // A slice is sent up to offset_.
  size_t offset_ = 0;
  bool at_end_ = false;
  Status end_;              // The status of the stream once at_end_; else why nothing came.
  grpc::ByteBuffer frame_;  // Belongs to gRPC while a write is under way.

  Mutex mu_;
  std::optional<TimePoint> writing_since_ ABSL_GUARDED_BY(mu_);
  bool cut_off_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::cache
