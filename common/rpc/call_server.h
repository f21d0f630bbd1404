#pragma once
// Takes calls from gRPC and hands each to the code that answers its method.
//
// Over gRPC's completion queues, each polled by one thread, rather than its callback API, whose
// threads (gRPC 1.51: at least two) pass every event to one another, sleep 100 ms after an idle
// second, and leave the end of a stream to yet another thread.

#include <grpcpp/completion_queue.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"
#include "common/rpc/call_reactor.h"

namespace cairn::rpc {

// Construct, add methods, Register, build the server, Start; when the server has shut down, Stop.
// Lives longer than the server.
class CallServer {
 public:
  // `pollers`: 0: one for every two CPUs, at most 16. One suffices to move some 4 GB/s.
  explicit CallServer(size_t pollers = 0);
  ~CallServer();
  CallServer(const CallServer&) = delete;
  CallServer& operator=(const CallServer&) = delete;

  // Makes the reactor of a call, which owns itself until OnDone. Runs on a poller.
  using Opener = std::function<void(std::unique_ptr<RawCall>, const grpc::ByteBuffer& request)>;
  using StreamOpener = std::function<void(std::unique_ptr<RawCall>)>;
  // A method with one request, such as "/cairn.v1.Cache/Match", and one message or a stream as its
  // answer.
  void Add(const std::string& method, Opener opener);
  // A method whose reactor reads what the client streams.
  void AddStream(const std::string& method, StreamOpener opener);

  void Register(grpc::ServerBuilder* builder);
  void Start();
  // Waits for the last call to end. REQUIRES: the server has shut down, which cancelled all calls.
  // Work for which they still wait continues.
  void Stop();

  // How long the poller that has worked longest on one reaction has done so. 0: all wait. Any
  // thread.
  Duration BusyFor() const;

 private:
  friend class RawCall;
  struct Method {
    Opener open;  // One of the two.
    StreamOpener open_stream;
  };

  void RequestCall(size_t poller);
  void Poll(size_t poller);
  // The call has arrived.
  void Take(std::unique_ptr<RawCall> call);
  void Gone();
  // All that it has, for a caller of the wrong server: "cairn.v1.Admin, cairn.v1.Cache".
  std::string Services() const;
  // Its request has, too.
  void Open(std::unique_ptr<RawCall> call, bool got_request);

  grpc::AsyncGenericService service_;
  std::unordered_map<std::string, Method> methods_;                   // Constant from Start on.
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;  // As are these.
  const size_t count_;
  // When each poller began its reaction, on the steady clock; 0: it waits.
  const std::unique_ptr<std::atomic<int64_t>[]> busy_since_ns_;
  std::vector<std::thread> pollers_;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  size_t calls_ ABSL_GUARDED_BY(mu_) = 0;  // Also those that have not arrived yet.
};

}  // namespace cairn::rpc
