#pragma once
// Keeps a session with the node open, in one background thread.

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/status.h"
#include "cairn/v1/cache.grpc.pb.h"
#include "clients/cpp/src/grpc/raw_call.h"
#include "clients/cpp/src/local/local_path.h"
#include "common/concurrency/mutex.h"

namespace cairn::client {

//   connecting --stream's first event, namespaces opened--> open --stream breaks--> connecting (at
//   once)
//       |  ^                                                                            |
//       v  +---------------------- back-off passed ------------------ away <--- failed -+
//
// In the state away, Get fails at once, so that nobody waits for a node that is known to be gone.
//
// The thread does not wait inside of gRPC while the session is open, it looks every now and then.
// Of all threads that wait there, gRPC lets one read what arrives for any of them: this one would
// take each answer away from the call that waits for it, and wake that call afterwards.
//
// Thread-safe.
class Session {
 public:
  struct Options {
    std::string client_name;
    Duration max_backoff = std::chrono::seconds(1);
    uint64_t seed = 0;  // Of the back-off's jitter.
  };
  struct Current {
    std::string id;
    uint32_t max_frame_bytes = 0;
    std::shared_ptr<const local::Offer> local;  // One per session.
  };

  // Starts the thread. `on_open` runs on it after each time a session opened, `on_look` some twenty
  // times a second while it is open.
  Session(std::shared_ptr<grpc::Channel> channel, const Options& options,
          std::function<void()> on_open, std::function<void()> on_look);
  ~Session();

  // The open session. Waits until `deadline` while connecting; then DEADLINE_EXCEEDED. UNAVAILABLE
  // while away.
  Result<Current> Get(TimePoint deadline);
  bool IsCurrent(const std::string& id) const;
  bool open() const;
  uint64_t times_opened() const;

  // Opens the namespace at the beginning of each session. RESOURCE_EXHAUSTED: there are too many.
  Status Remember(const NamespaceSpec& spec);
  // True if a session has created the namespace when it was opened, since the last time that this
  // was called.
  bool TakeCreated(const Digest& fingerprint);
  // Call it when the node says that it does not know a namespace, for example because it was
  // dropped. Opens all namespaces again, in the background.
  void ReopenNamespaces();
  // Call it when a call failed, so the session may have ended. Looks at once, in the background.
  void Look();
  // The same, and waits for the result.
  bool HasEnded(const std::string& id, TimePoint deadline);

 private:
  enum class State { kConnecting, kOpen, kAway };

  void Run();
  // One session from its beginning to its end. Returns why it ended; sets `opened`.
  Status RunOnce(bool* opened);
  Result<v1::SessionEvent> Open(RawCall& stream);
  // Until it ends, or the client does.
  void KeepOpen(RawCall& stream);
  Status OpenNamespaces();
  void SetAway(const Status& why);
  // False when stopping.
  bool WaitBackoff(Duration wait);

  // Constant after construction.
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Cache::Stub> stub_;
  const Options options_;
  const std::function<void()> on_open_;
  const std::function<void()> on_look_;

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool reopen_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t looks_wanted_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t looks_done_ ABSL_GUARDED_BY(mu_) = 0;
  RawCall* stream_ ABSL_GUARDED_BY(mu_) = nullptr;  // Of RunOnce, while it runs.
  State state_ ABSL_GUARDED_BY(mu_) = State::kConnecting;
  Status why_away_ ABSL_GUARDED_BY(mu_);
  Current current_ ABSL_GUARDED_BY(mu_);
  uint64_t times_opened_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<Digest, NamespaceSpec> namespaces_ ABSL_GUARDED_BY(mu_);
  std::set<Digest> created_ ABSL_GUARDED_BY(mu_);

  // The thread's own.
  grpc::GenericStub streams_;
  std::mt19937_64 random_;
  std::thread thread_;
};

}  // namespace cairn::client
