#pragma once
// A router's engine with everything that it needs, in one thread: workers that the test plays, a
// clock and an executor that go on when the test says so.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/status/matchers.h"
#include "services/router/engine/router_engine.h"
#include "tests/unit/router/fake_link.h"

namespace cairn::router {

class EngineFixture : public ::testing::Test {
 protected:
  // For engines that make tokens themselves.
  void LoadModel() {
    auto model = model::Model::Load("tests/data/gguf/kquant.gguf");
    ASSERT_OK(model);
    model_ = *std::move(model);
    encoder_ = std::make_unique<PromptEncoder>(*model_, 1 << 20);
  }
  void MakeDispatcher(std::vector<std::string> addresses, Dispatcher::Options options = {}) {
    addresses_ = std::move(addresses);
    auto policy = MakePolicy("cost");
    ASSERT_OK(policy);
    dispatcher_ = std::make_unique<Dispatcher>(options, *std::move(policy), &clock_, /*seed=*/1);
    registry_ = std::make_unique<WorkerRegistry>(
        WorkerRegistry::Options{.addresses = addresses_}, workers_.links(), &clock_,
        [this](const std::string& address, const WorkerLoad* load) {
          if (load != nullptr) dispatcher_->Report(address, *load);
        });
    registry_->Tick();
  }
  // After MakeDispatcher.
  void MakeEngine(RouterEngine::Options options, EnginePrompts* prompts = nullptr,
                  RouterEngine::Observers observers = {}) {
    engine_ = std::make_unique<RouterEngine>(options,
                                             RouterEngine::Parts{.encoder = encoder_.get(),
                                                                 .prompts = prompts,
                                                                 .registry = registry_.get(),
                                                                 .index = &index_,
                                                                 .dispatcher = dispatcher_.get(),
                                                                 .executor = &executor_,
                                                                 .long_texts = long_texts_,
                                                                 .clock = &clock_,
                                                                 .tracer = tracer_},
                                             std::move(observers));
  }
  void Fail(FakeRequest* sent, const Status& status) {
    std::exchange(sent->observer, nullptr)->OnError(status);
    executor_.RunAll();
  }
  void Finish(FakeRequest* sent, const WorkerAnswer& answer) {
    std::exchange(sent->observer, nullptr)->OnDone(answer);
    executor_.RunAll();
  }
  // Whatever a test left open ends: no run may outlive the engine.
  void EndAll() {
    for (const std::string& address : addresses_) {
      for (FakeRequest& sent : workers_[address].requests) {
        if (sent.observer != nullptr) Fail(&sent, InvalidArgument("the test ended"));
      }
    }
    executor_.RunAll();
    EXPECT_TRUE(engine_->Drain(clock_.Now() + std::chrono::seconds(1)));
    calls_.clear();
    engine_.reset();
  }

  FakeClock clock_;
  FakeWorkers workers_;
  ManualExecutor executor_;
  Executor* long_texts_ = nullptr;     // Before MakeEngine.
  tracing::Tracer* tracer_ = nullptr;  // The same.
  std::vector<std::string> addresses_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<PromptEncoder> encoder_;
  PrefixIndex index_{{.max_bytes = 4 << 20}};
  std::unique_ptr<Dispatcher> dispatcher_;
  std::unique_ptr<WorkerRegistry> registry_;
  std::unique_ptr<RouterEngine> engine_;
  std::vector<std::unique_ptr<GenerateCall>> calls_;
};

}  // namespace cairn::router
