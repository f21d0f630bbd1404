#pragma once
// The stream in which a session over gRPC lives.

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <string>

#include "cairn/common/clock.h"
#include "clients/cpp/src/core/transport.h"
#include "clients/cpp/src/grpc/frame_call.h"
#include "common/concurrency/mutex.h"
#include "common/rpc/channel.h"

namespace cairn::client {

// Does not wait inside of gRPC while the session is open, and only looks. When several threads wait
// there, gRPC lets one of them read all messages that arrive: this thread would take each answer
// away from the call that waits for it, and wake that call afterwards. Threads as SessionLink.
class GrpcSessionLink final : public SessionLink {
 public:
  // The client's words about itself.
  struct Client {
    std::string name;
    std::string tenant = {};  // The only one that it will use. Empty: any.
  };
  // `clock` must outlive it.
  GrpcSessionLink(std::shared_ptr<grpc::Channel> channel, Client client, const Clock* clock);
  ~GrpcSessionLink() override { Drop(); }

  Result<SessionInfo> Open() override;
  bool IsOpen(bool thorough) override;
  bool IsDraining() const override { return draining_; }
  Status Close() override;
  void Wait(TimePoint until) override;
  void Cancel() override;

 private:
  // The first event of the stream.
  Result<SessionInfo> First();
  void Drop();

  const std::shared_ptr<grpc::Channel> channel_;
  rpc::Reconnect reconnect_;
  const Client client_;
  const Clock* const clock_;
  grpc::GenericStub stub_;
  std::unique_ptr<FrameCall> stream_;  // The stream belongs to the thread that uses it.
  bool ended_ = false;                 // The same.
  bool draining_ = false;              // The same.

  Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  FrameCall* to_cancel_ ABSL_GUARDED_BY(mu_) = nullptr;  // stream_.
};

}  // namespace cairn::client
