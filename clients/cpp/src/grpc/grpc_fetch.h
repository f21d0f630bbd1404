#pragma once
// The streams of a Fetch or a Get over gRPC.

#include <optional>

#include "cairn/common/clock.h"
#include "cairn/v1/cache.pb.h"
#include "clients/cpp/src/core/transport.h"
#include "clients/cpp/src/grpc/data_connections.h"
#include "clients/cpp/src/slice_assembler.h"

namespace cairn::client {

// Without the lease. INTERNAL for more blocks than were `asked` for: keys, in each pool of `joint`.
Result<MatchOutcome> ToOutcome(const v1::MatchResponse& response, size_t asked,
                               const JointQuestion& joint = {});

// One fetch: a stream, and another one for each block of which a slice came wrong. Used by one
// thread.
class GrpcFetch {
 public:
  // A lookup at the beginning of a stream, and its answer.
  struct Lookup {
    size_t asked = 0;    // Keys.
    TimePoint deadline;  // The deadline of the answer.
    std::optional<MatchOutcome> answer = {};
  };

  // All outlive it. `blocks`: of the lease, or as many as are looked up.
  GrpcFetch(DataConnections* connections, const Clock* clock, FetchSink* sink, uint32_t blocks,
            const FetchOptions& options, TimePoint deadline);

  // One stream. `lookup`: of a request that has one, else null.
  Status Run(const v1::FetchRequest& request, Lookup* lookup);
  bool has_wrong_slices() const { return assembler_.has_wrong_slices(); }
  // The stream of `request` again, for each block with wrong slices.
  Status RunAgain(v1::FetchRequest request);
  // Blocks with wrong slices have failed.
  void GiveUpWrongSlices();

  // With `status`, which the fetch ends with.
  FetchReport Report(Status status) const;

 private:
  static Status Cancelled();
  // Why the fetch ends, if nothing came in time.
  Status Late(const Lookup* lookup) const;
  // Gives what a frame brings to the assembler.
  Status Take(grpc::ByteBuffer* frame, Lookup* lookup);

  DataConnections& connections_;
  const Clock& clock_;
  SliceAssembler assembler_;
  const FetchOptions& options_;
  const TimePoint deadline_;
  // Moved on by each complete slice, and by the answer of a lookup.
  TimePoint progress_ = {};
  bool got_bytes_ = false;
};

}  // namespace cairn::client
