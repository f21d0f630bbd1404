#include "cairn/client/connect.h"
#include "services/worker/engine/option_check.h"
#include "services/worker/engine/worker_device.h"
#include "services/worker/engine/worker_engine.h"
#include "tools/cairn/generator/connection.h"
#include "tools/cairn/generator/generator.h"

namespace cairn::cli {
namespace {

class LocalWorker final : public Generator {
 public:
  explicit LocalWorker(std::unique_ptr<worker::WorkerEngine> engine) : engine_(std::move(engine)) {}

  Result<worker::GenerateSummary> Generate(const worker::GenerateRequest& request,
                                           const worker::GenerateCallbacks& callbacks) override {
    return engine_->Generate(request, callbacks);
  }

  Status WaitIdle(std::chrono::milliseconds timeout) override {
    if (engine_->WaitIdle(timeout)) return OkStatus();
    return Errorf(StatusCode::kDeadlineExceeded, "background work was not done after {} ms",
                  timeout.count());
  }

  Result<Info> GetInfo() override {
    const worker::WorkerEngine::Info info = engine_->GetInfo();
    return Info{.model = info.model,
                .weights_digest = info.weights_digest.Hex(),
                .numerics = info.numerics,
                .context_tokens = info.context_tokens,
                .cache_address = info.cache_address,
                .cache_connected = info.cache_connected,
                .fingerprint = info.fingerprint ? std::string(info.fingerprint->View()) : ""};
  }

 private:
  std::unique_ptr<worker::WorkerEngine> engine_;
};

Result<worker::WorkerEngine::Options> EngineOptions(const LocalWorkerOptions& options) {
  worker::WorkerEngine::Options engine;
  engine.model_path = options.model_path;
  engine.threads = options.threads;
  engine.device = options.device;
  engine.recipe = options.recipe;
  engine.calibration = options.calibration;
  engine.read_policy = options.read_policy;
  engine.kv_budget = options.kv_budget;
  engine.cache_address = options.cache_address;
  if (options.arithmetic == "float32") {
    engine.arithmetic = worker::Arithmetic::kFloat32;
  } else if (options.arithmetic != "fast") {
    return InvalidArgument("arithmetic: got '{}', expected fast or float32", options.arithmetic);
  }
  return engine;
}

}  // namespace

Status CheckLocalWorker(const LocalWorkerOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const worker::WorkerEngine::Options engine, EngineOptions(options));
  return worker::CheckOptions(engine);
}

Result<std::unique_ptr<Generator>> StartLocalWorker(const LocalWorkerOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const worker::WorkerEngine::Options engine_options,
                         EngineOptions(options));
  std::unique_ptr<client::CacheClient> cache;
  if (!options.cache_address.empty()) {
    client::ConnectOptions connection = ConnectionTo(options.cache_address, options.tls);
    connection.tenant = engine_options.tenant;
    CAIRN_ASSIGN_OR_RETURN(
        connection.devices,
        worker::OpenWorkerImporter(engine_options.device, engine_options.device_library));
    CAIRN_ASSIGN_OR_RETURN(cache, client::Connect(connection));
  }
  CAIRN_ASSIGN_OR_RETURN(auto engine,
                         worker::WorkerEngine::Create(engine_options, std::move(cache)));
  return std::make_unique<LocalWorker>(std::move(engine));
}

}  // namespace cairn::cli
