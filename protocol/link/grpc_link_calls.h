#pragma once
// Calls to holders over gRPC.

#include <grpcpp/channel.h>
#include <grpcpp/completion_queue.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "common/concurrency/mutex.h"
#include "common/link/calls.h"

namespace cairn::link {

// One thread of its own runs all callbacks.
class GrpcLinkCalls final : public LinkCalls {
 public:
  // The channel to a peer; nullptr: it cannot be reached. Any thread, must not wait.
  using Channels = std::function<std::shared_ptr<grpc::Channel>(const std::string& peer)>;

  // `self`: how this process names itself to holders.
  GrpcLinkCalls(std::string self, Channels channels);
  // Cancels the calls, and runs their callbacks.
  ~GrpcLinkCalls() override;

  void Open(const std::string& peer, const OpenRequest& request, TimePoint deadline,
            std::function<void(Result<OpenAnswer>)> done) override;
  void Move(const std::string& peer, const MoveRequest& request, TimePoint deadline,
            std::function<void(Status)> done) override;
  void Close(const std::string& peer, uint64_t epoch, TimePoint deadline,
             std::function<void(Status)> done) override;

 private:
  class Operation;
  template <typename Response>
  class Unary;
  template <typename Request, typename Response, typename Prepare, typename Done>
  void Call(const std::string& peer, const Request& request, TimePoint deadline, Prepare prepare,
            Done done);
  void Poll();

  const std::string self_;
  const Channels channels_;
  grpc::CompletionQueue queue_;
  Mutex mu_;
  CondVar ended_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::set<Operation*> open_ ABSL_GUARDED_BY(mu_);
  std::thread poller_;
};

}  // namespace cairn::link
