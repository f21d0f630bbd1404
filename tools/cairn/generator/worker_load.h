#pragma once
// The present work of a worker, as it tells routers.

#include <cstdint>
#include <memory>
#include <string>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "tools/cairn/options.h"

namespace cairn::cli {

// The messages LoadReport and WorkerInfo of proto/cairn/v1/worker.proto, which describe the fields.
struct WorkerLoad {
  std::string model = {};
  std::string cache_address = {};
  bool cache_connected = false;
  uint32_t running_prompts = 0, running_decodes = 0, parked = 0;
  uint64_t queued_requests = 0;  // The requests of all priorities.
  double prefill_seconds = 0;
  uint64_t kv_pages_free = 0, kv_pages_total = 0;
  double prefill_tokens_per_second = 0, step_seconds = 0;
  bool draining = false;
};

// Not thread-safe.
class WorkerLoadSource {
 public:
  virtual ~WorkerLoadSource() = default;
  // As it is now. UNAVAILABLE: the worker is away. DEADLINE_EXCEEDED after `timeout`.
  virtual Result<WorkerLoad> Ask(Duration timeout) = 0;
};

// Does not wait for the worker. INVALID_ARGUMENT for an address or TLS file that cannot be used.
Result<std::unique_ptr<WorkerLoadSource>> ConnectWorkerLoad(const std::string& address,
                                                            const TlsFlags& tls = {});

}  // namespace cairn::cli
