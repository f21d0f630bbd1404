#include "tools/cairn/commands/open_worker.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "common/config/text_file.h"
#include "tools/cairn/commands/flags.h"

namespace cairn::cli {
namespace {

Result<LocalWorkerOptions> LocalOptions(const WorkerOptions& options) {
  uint64_t budget = 0;
  if (!options.kv_budget.empty()) {
    CAIRN_ASSIGN_OR_RETURN(budget, ParseSize("--kv-budget", options.kv_budget));
  }
  return LocalWorkerOptions{.model_path = options.model,
                            .arithmetic = options.arithmetic,
                            .threads = options.threads,
                            .device = options.device,
                            .recipe = options.recipe,
                            .calibration = options.calibration,
                            .read_policy = options.read_policy,
                            .kv_budget = budget,
                            .cache_address = options.no_cache ? "" : options.cache,
                            .tls = options.tls};
}

}  // namespace

Status CheckWorker(const WorkerOptions& options) {
  if (!options.worker.empty()) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const LocalWorkerOptions local, LocalOptions(options));
  return CheckLocalWorker(local);
}

namespace {

Result<std::unique_ptr<Generator>> ConnectTo(const char* flag, const std::string& address,
                                             const TlsFlags& tls) {
  auto worker = ConnectWorker(address, tls);
  if (worker.ok()) return worker;
  return InFlags(worker.status(), flag);
}

}  // namespace

Result<std::unique_ptr<Generator>> OpenWorker(const WorkerOptions& options) {
  if (!options.worker.empty()) {
    CAIRN_ASSIGN_OR_RETURN(auto worker, ConnectTo("--worker", options.worker, options.tls));
    if (options.prefill_worker.empty()) return worker;
    CAIRN_ASSIGN_OR_RETURN(auto prefill,
                           ConnectTo("--prefill-worker", options.prefill_worker, options.tls));
    return PairWorkers(std::move(prefill), std::move(worker));
  }
  CAIRN_ASSIGN_OR_RETURN(const LocalWorkerOptions local, LocalOptions(options));
  CAIRN_ASSIGN_OR_RETURN(auto generator, StartLocalWorker(local));
  if (!local.cache_address.empty()) {
    // A worker that serves for long would just begin; this one has a single request, which would
    // miss only because the connection was not up yet.
    const Status connected = WaitForCache(*generator, true, std::chrono::seconds(2));
    if (!connected.ok()) {
      std::fprintf(stderr, "cairn: warning: %s; everything is computed\n",
                   Message(connected).c_str());
    }
  }
  return generator;
}

worker::GenerateRequest RequestFromFlags(const SamplingFlags& flags, const WorkerOptions& worker) {
  worker::GenerateRequest request;
  request.max_tokens = flags.max_tokens;
  request.sampling.temperature = static_cast<float>(flags.temperature);
  request.sampling.top_k = static_cast<int32_t>(flags.top_k);
  request.sampling.top_p = static_cast<float>(flags.top_p);
  request.sampling.seed = flags.seed;
  request.no_cache = worker.no_cache;
  return request;
}

Result<std::string> ReadText(const std::string& path) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return std::string(config::WithoutByteOrderMark(text.str()));
  }
  if (std::error_code error; std::filesystem::is_directory(path, error)) {
    return Errorf(StatusCode::kInvalidArgument, "cannot read '{}': it is a directory", path);
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return Errorf(StatusCode::kNotFound, "cannot read '{}'", path);
  text << file.rdbuf();
  return std::string(config::WithoutByteOrderMark(text.str()));
}

}  // namespace cairn::cli
