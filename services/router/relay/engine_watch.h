#pragma once
// Watches one engine: what it serves, whether it is well, and how loaded it seems.
//
//   GET /health -> GET /v1/models -> OnInfo, OnReport each load_interval
//                                      |  each second GET /health, or /v1/models without it
//                                      |  each 5 s    GET /v1/models
//   OnEnd <- it cannot be reached, or says three times in a row nothing or that it is not well

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/concurrency/mutex.h"
#include "common/http/client.h"
#include "services/router/registry/worker_link.h"
#include "services/router/relay/engine_load.h"
#include "services/router/relay/fetch.h"
#include "services/router/relay/key_file.h"

namespace cairn::router {

// Thread-safe. Its observer is called by one thread at a time: all that it is told, it is told in
// ticks, which follow one another.
class EngineWatch final : public WorkerCall, public std::enable_shared_from_this<EngineWatch> {
 public:
  struct Parts {
    http::Origin origin;
    uint32_t block_tokens = 16;
    Duration load_interval = std::chrono::milliseconds(100);  // The time between two ticks.
    std::string holder = {};                                  // WorkerReport::cache_node_id.
    http::Client* client = nullptr;
    KeyFile* key = nullptr;
    std::shared_ptr<EngineLoad> load = {};
  };
  static std::shared_ptr<WorkerCall> Begin(Parts parts,
                                           std::shared_ptr<WorkerWatchObserver> observer);

  EngineWatch(Parts parts, std::shared_ptr<WorkerWatchObserver> observer);
  void Cancel() override;

 private:
  // The engine's last answers to questions.
  struct Answers {
    bool asking = false;
    std::optional<Status> health = {};                    // nullopt: nothing new.
    std::optional<std::vector<EngineModel>> models = {};  // As above.
  };

  void AskHealth();
  void OnHealth(const Result<Fetched>& answer);
  void AskModels();
  void OnModels(const Result<Fetched>& answer);
  void Answered(const Status& health, std::optional<std::vector<EngineModel>> models);
  void Ask(const std::string& path, void (EngineWatch::*answered)(const Result<Fetched>&));
  void TickLater();
  void Tick();
  void Tell(std::vector<EngineModel> models);

  const Parts parts_;
  const uint64_t ticks_of_second_;                 // At least 1.
  std::shared_ptr<WorkerWatchObserver> observer_;  // Used by ticks. nullptr: it has got its end.
  uint64_t ticks_ = 0;                             // Used by ticks.
  bool told_ = false;                              // Used by ticks: OnInfo was called.
  uint32_t failures_ = 0;                          // Used by ticks: failures in a row.

  Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool has_health_ ABSL_GUARDED_BY(mu_) = true;  // The path.
  bool knows_models_ ABSL_GUARDED_BY(mu_) = false;
  Answers answers_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<http::ClientCall> call_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::router
