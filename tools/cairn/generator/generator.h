#pragma once
// A generator answers prompts: a worker in this process, or one at an address.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "cairn/common/status.h"
#include "services/worker/engine/request.h"
#include "tools/cairn/options.h"

namespace cairn::cli {

// Not thread-safe.
class Generator {
 public:
  struct Info {
    std::string model;
    std::string weights_digest;  // Hexadecimal SHA-256 of the model file.
    std::string numerics;
    uint32_t context_tokens = 0;
    std::string cache_address;  // Empty: no cache.
    bool cache_connected = false;
    std::string fingerprint;  // 32 bytes; empty without a cache.
  };

  virtual ~Generator() = default;

  // Errors are those of WorkerEngine::Generate; for a remote worker also UNAVAILABLE when it is
  // away.
  virtual Result<worker::GenerateSummary> Generate(const worker::GenerateRequest& request,
                                                   const worker::GenerateCallbacks& callbacks) = 0;
  // Until pushes and prefills of finished turns are done. DEADLINE_EXCEEDED when they are not in
  // time.
  virtual Status WaitIdle(std::chrono::milliseconds timeout) = 0;
  virtual Result<Info> GetInfo() = 0;
};

// Until the worker's connection to its cache node is up (or down, if `connected` is false).
// DEADLINE_EXCEEDED naming the node's address.
Status WaitForCache(Generator& generator, bool connected, std::chrono::milliseconds timeout);

struct LocalWorkerOptions {
  std::string model_path = {};
  std::string arithmetic = "fast";          // "fast" or "float32".
  int threads = 0;                          // 0: one per CPU.
  std::string device = "cpu";               // WorkerEngine::Options::device.
  std::string recipe = "raw";               // WorkerEngine::Options::recipe.
  std::string calibration = "calibration";  // WorkerEngine::Options::calibration.
  std::string read_policy = {};             // WorkerEngine::Options::read_policy.
  uint64_t kv_budget = 0;                   // WorkerEngine::Options::kv_budget.
  std::string cache_address = {};           // Empty: no cache.
  TlsFlags tls = {};                        // For the cache.
};
// Errors of the options that do not depend on the model: those of worker::CheckOptions.
Status CheckLocalWorker(const LocalWorkerOptions& options);
// INVALID_ARGUMENT for an address or option that cannot be used; errors of WorkerEngine::Create.
Result<std::unique_ptr<Generator>> StartLocalWorker(const LocalWorkerOptions& options);

// Does not wait for the worker. INVALID_ARGUMENT for an address or TLS file that cannot be used.
Result<std::unique_ptr<Generator>> ConnectWorker(const std::string& address,
                                                 const TlsFlags& tls = {});

// One worker computes each prompt, the other one fetches it as it comes and answers
// (docs/operate/disaggregation.md). Both use the same cache node. If the first one is away or
// fails, the second computes what is missing.
std::unique_ptr<Generator> PairWorkers(std::unique_ptr<Generator> prefill,
                                       std::unique_ptr<Generator> decode);

}  // namespace cairn::cli
