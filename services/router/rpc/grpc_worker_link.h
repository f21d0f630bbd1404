#pragma once
// WorkerLink over gRPC. Its header knows no gRPC.

#include <memory>
#include <string>

#include "cairn/common/status.h"
#include "services/router/registry/worker_link.h"

namespace cairn::router {

class CompletionPoller;

// PEM files of the router's side; all empty: plaintext.
struct WorkerLinkTls {
  std::string authorities, certificate, private_key;
  std::string server_name;  // Expected in workers' certificates. Empty: the address's.
};

// Makes links that connect when they are used. `poller` must outlive them and their calls.
// INVALID_ARGUMENT: the files cannot be used.
Result<MakeWorkerLink> GrpcWorkerLinks(const WorkerLinkTls& tls, CompletionPoller* poller);

}  // namespace cairn::router
