#pragma once
// Requests, answers and reports of workers to and from protocol messages.

#include "cairn/v1/router.pb.h"
#include "cairn/v1/worker.pb.h"
#include "services/router/engine/router.h"
#include "services/router/registry/worker_link.h"

namespace cairn::router {

// `now` and `wall` are the same moment on both clocks.
void ToProto(const WorkerRequest& request, TimePoint now,
             std::chrono::system_clock::time_point wall, v1::GenerateRequest* out);
// A malformed fingerprint reads as none: keys of such a worker are not known.
WorkerInfo FromProto(const v1::WorkerInfo& in);
WorkerReport FromProto(const v1::LoadReport& in);
WorkerAnswer FromProto(const v1::GenerateSummary& in);

void ToProto(const WorkerReport& report, v1::LoadReport* out);
void ToProto(const Pick& pick, v1::PickResponse* out);
// INVALID_ARGUMENT names a field that only workers have, or one without meaning.
Result<GenerateRequest> FromProto(const v1::GenerateRequest& in, TimePoint now,
                                  std::chrono::system_clock::time_point wall);

}  // namespace cairn::router
