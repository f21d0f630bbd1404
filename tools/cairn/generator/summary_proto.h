#pragma once
// A worker's summary from its message.

#include "cairn/v1/worker.pb.h"
#include "services/worker/engine/request.h"

namespace cairn::cli {

worker::GenerateSummary SummaryFromProto(const v1::GenerateSummary& proto);

}  // namespace cairn::cli
