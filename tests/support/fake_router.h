#pragma once
// A Router without workers: it answers with the words of its prompt, as the test wishes.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/concurrency/mutex.h"
#include "services/router/engine/router.h"

namespace cairn::router {

// Thread-safe.
class FakeRouter final : public Router {
 public:
  struct Running {
    GenerateRequest request;
    std::shared_ptr<GenerateObserver> observer;
  };

  // Called for each request, on the caller's thread. Default: the request waits in `Take`.
  std::function<void(Running)> on_generate;
  // The pick, and the holders. Default: "nobody:1", without a lease; nobody.
  std::function<std::variant<FollowedPick, GenerateError>(PickAsk)> on_pick;
  std::function<std::variant<std::vector<PromptHolder>, GenerateError>(const HoldersQuery&)>
      on_holders;
  std::vector<ServedModel> models = {{.id = "fake", .context_tokens = 2048, .workers = 1}};

  std::unique_ptr<GenerateCall> Generate(GenerateRequest request,
                                         std::shared_ptr<GenerateObserver> observer) override {
    Running running{std::move(request), std::move(observer)};
    if (on_generate) {
      on_generate(std::move(running));
    } else {
      Keep(std::move(running));
    }
    return std::make_unique<Call>(this);
  }
  void PickWorker(GenerateRequest, PickOnceDone done) override { done(Pick{.worker = "nobody:1"}); }
  void PickAndFollow(PickAsk ask, PickDone done) override {
    if (on_pick) return done(on_pick(std::move(ask)));
    done(FollowedPick{.pick = {.worker = "nobody:1"}});
  }
  std::variant<std::vector<PromptHolder>, GenerateError> Holders(
      const HoldersQuery& query) override {
    if (on_holders) return on_holders(query);
    return std::vector<PromptHolder>();
  }
  std::vector<ServedModel> Models() override { return models; }

  // The request waits. One that nobody keeps ends its connection.
  void Keep(Running running) {
    MutexLock lock(mu_);
    running_.push_back(std::move(running));
  }
  // The oldest request that waits. REQUIRES: there is one.
  Running Take() {
    MutexLock lock(mu_);
    Running running = std::move(running_.front());
    running_.erase(running_.begin());
    return running;
  }
  size_t waiting() {
    MutexLock lock(mu_);
    return running_.size();
  }
  int cancelled() {
    MutexLock lock(mu_);
    return cancelled_;
  }

 private:
  class Call final : public GenerateCall {
   public:
    explicit Call(FakeRouter* router) : router_(router) {}
    void Cancel() override {
      MutexLock lock(router_->mu_);
      ++router_->cancelled_;
    }

   private:
    FakeRouter* const router_;
  };

  Mutex mu_;
  std::vector<Running> running_ ABSL_GUARDED_BY(mu_);
  int cancelled_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::router
