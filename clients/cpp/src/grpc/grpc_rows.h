#pragma once
// A fetch of rows over gRPC: one stream.

#include <cstddef>
#include <vector>

#include "cairn/common/clock.h"
#include "clients/cpp/src/core/transport.h"
#include "clients/cpp/src/grpc/data_connections.h"
#include "protocol/frames/fetch_frame_reader.h"

namespace cairn::client {

// Used by one thread.
class GrpcRows {
 public:
  // All outlive it.
  GrpcRows(const Clock* clock, const RowsWanted& wanted, RowSink* sink, const FetchOptions& options,
           TimePoint deadline);

  RowReport Run(DataConnections* connections, const LeaseInfo& lease);

  // Gives what a frame brings to the sink. Every error is a node that breaks the protocol, or the
  // sink's own; UNIMPLEMENTED: the node sends slices, so it knows no rows.
  Status Take(const frames::FetchFrameView& frame);
  // Numbers of groups that neither came nor failed.
  std::vector<size_t> Rest() const;
  const FetchCounts& counts() const { return counts_; }

 private:
  Status Stream(DataConnections* connections, const LeaseInfo& lease);
  Status TakeRows(const frames::FetchFrameView::Rows& rows);
  Status Late() const;

  const Clock& clock_;
  const RowsWanted wanted_;
  RowSink& sink_;
  const FetchOptions& options_;
  const TimePoint deadline_;
  std::vector<bool> done_;  // By group.
  std::vector<std::byte> joined_;
  FetchCounts counts_;
  bool got_bytes_ = false;
};

}  // namespace cairn::client
