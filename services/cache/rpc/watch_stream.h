#pragma once
// The stream of one Watch call. Holds no thread: the engine's queue is looked into at each tick, and after each event sent.

#include <atomic>

#include "cairn/v1/cache.pb.h"
#include "services/cache/rpc/call.h"
#include "services/cache/rpc/pushed_stream.h"
#include "services/cache/rpc/stream_set.h"

namespace cairn::cache {

class WatchStream final : public PushedStream {
 public:
  static void Open(RpcContext* rpc, StreamSet<WatchStream>* set, std::unique_ptr<RawCall> call,
                   const grpc::ByteBuffer& request);
  WatchStream(RpcContext* rpc, StreamSet<WatchStream>* set, std::unique_ptr<RawCall> call)
      : PushedStream(std::move(call)), set_(set), call_(rpc, Method::kWatch, &context()) {}

  void Tick() { Pump(); }

 private:
  Status Begin(const grpc::ByteBuffer& request);
  void Pump();
  // Sends the next event if there is one and the stream is idle; false when there is nothing to send.
  bool Step();
  void OnIdle() override { Pump(); }
  void OnOver(const grpc::Status& status) override;

  StreamSet<WatchStream>* const set_;
  Call call_;
  bool open_ = false;
  std::unique_ptr<EventQueue> queue_;
  std::atomic<bool> pumping_{false};
  // Owned by who holds pumping_.
  std::vector<CacheEvent> batch_;
  size_t next_ = 0;
};

}  // namespace cairn::cache
