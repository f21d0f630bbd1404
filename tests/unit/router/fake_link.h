#pragma once
// Workers of a test: links whose answers the test gives, one step at a time.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/router/registry/worker_link.h"

namespace cairn::router {

class FakeCall final : public WorkerCall {
 public:
  void Cancel() override { cancelled = true; }
  bool cancelled = false;
};

// A request that was sent to a worker, and how a test answers it.
struct FakeRequest {
  WorkerRequest request;
  std::shared_ptr<WorkerAnswerObserver> observer;
  std::shared_ptr<FakeCall> call;
};

struct FakeWatch {
  std::shared_ptr<WorkerWatchObserver> observer;
  std::shared_ptr<FakeCall> call;
};

// Not thread-safe. Lives longer than the links.
class FakeWorkers {
 public:
  struct Worker {
    std::vector<FakeRequest> requests;
    std::vector<FakeWatch> watches;
  };

  MakeWorkerLink links() {
    return
        [this](const std::string& address) { return std::make_unique<Link>(&workers_[address]); };
  }
  Worker& operator[](const std::string& address) { return workers_[address]; }

  // The worker's last watch says that it is there, and has nothing to do.
  void Reach(const std::string& address, WorkerInfo info, WorkerReport report = {}) {
    const auto observer = workers_[address].watches.back().observer;
    observer->OnInfo(info);
    observer->OnReport(report);
  }

 private:
  class Link final : public WorkerLink {
   public:
    explicit Link(Worker* worker) : worker_(worker) {}
    std::shared_ptr<WorkerCall> Generate(const WorkerRequest& request,
                                         std::shared_ptr<WorkerAnswerObserver> observer) override {
      auto call = std::make_shared<FakeCall>();
      worker_->requests.push_back({request, std::move(observer), call});
      return call;
    }
    std::shared_ptr<WorkerCall> Watch(std::shared_ptr<WorkerWatchObserver> observer) override {
      auto call = std::make_shared<FakeCall>();
      worker_->watches.push_back({std::move(observer), call});
      return call;
    }

   private:
    Worker* const worker_;
  };

  std::map<std::string, Worker> workers_;
};

}  // namespace cairn::router
