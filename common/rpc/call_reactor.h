#pragma once
// Answers one call: reads, writes and ends it, and is told when each of these steps is done.

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <memory>

namespace cairn::rpc {

class CallReactor;
class CallServer;

// gRPC's side of a call, from before it arrives until its reactor goes.
class RawCall {
 public:
  RawCall(CallServer* server, size_t poller) : place_{server}, poller_(poller), io_(&context_) {}
  RawCall(const RawCall&) = delete;
  RawCall& operator=(const RawCall&) = delete;

  grpc::GenericServerContext& context() { return context_; }

 private:
  friend class CallReactor;
  friend class CallServer;
  // The tag that a completion queue gives back.
  struct Tag {
    RawCall* call;
    void (RawCall::*done)(bool ok);
  };

  void Arrived(bool ok);
  void Opened(bool ok);
  void ReadDone(bool ok);
  void WriteDone(bool ok);
  void Finished(bool ok);
  void Over(bool ok);
  void Release();

  // Tells the server that the call is gone, when the rest of it is.
  struct Place {
    CallServer* const server;
    ~Place();
  };
  const Place place_;
  const size_t poller_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter io_;
  grpc::ByteBuffer request_;  // The request of a method that has one.
  CallReactor* reactor_ = nullptr;
  bool cancelled_ = false;  // The poller's own.
  // Operations that must be over before OnDone: the call, its end, and each read and write under
  // way.
  std::atomic<int> pending_{2};
  Tag arrived_{this, &RawCall::Arrived}, opened_{this, &RawCall::Opened},
      read_{this, &RawCall::ReadDone}, write_{this, &RawCall::WriteDone},
      finished_{this, &RawCall::Finished}, over_{this, &RawCall::Over};
};

// One read and one write may be under way. Any thread may call Start... and Finish, also from
// inside a reaction. Reactions run on the thread that polls for this call, one at a time. They
// should be short, because other calls wait for them. Every reactor ends its call once, with Finish
// or StartWriteAndFinish, even if the call was cancelled, and starts nothing afterwards.
class CallReactor {
 public:
  explicit CallReactor(std::unique_ptr<RawCall> call);
  virtual ~CallReactor() = default;
  CallReactor(const CallReactor&) = delete;
  CallReactor& operator=(const CallReactor&) = delete;

 protected:
  grpc::GenericServerContext& context() { return call_->context(); }
  // `frame` lives until OnReadDone. ok: false there means that the client will send no more.
  void StartRead(grpc::ByteBuffer* frame);
  // `frame` lives until OnWriteDone. ok: false there means that the client is gone.
  void StartWrite(const grpc::ByteBuffer* frame);
  // No OnWriteDone follows.
  void StartWriteAndFinish(const grpc::ByteBuffer* frame, const grpc::Status& status);
  void Finish(const grpc::Status& status);

 private:
  friend class RawCall;
  friend class CallServer;
  virtual void OnReadDone(bool /*ok*/) {}
  virtual void OnWriteDone(bool /*ok*/) {}
  // The client cancelled, or is gone. May come after Finish, which must not be called again then.
  virtual void OnCancel() {}
  // The last reaction: gRPC has finished the call. May delete the reactor.
  virtual void OnDone() = 0;

  const std::unique_ptr<RawCall> call_;
};

}  // namespace cairn::rpc
