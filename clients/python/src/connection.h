#pragma once
// A client that many Python threads share and that can be closed at any time.

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>

#include "cairn/client/cache_client.h"
#include "cairn/client/connect.h"
#include "clients/python/src/pending_match.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/mutex.h"

namespace cairn::python {

// A namespace that was opened here: how its blocks' bytes lie.
struct OpenNamespace {
  NamespaceSpec spec;
  format::Codec codec = format::Codec::kRaw;
};

// Knows no Python. Its calls wait, so callers release the GIL first. Thread-safe.
//
// A forked process has none of the client's threads, and its mutexes may be locked. So there every
// call is refused, and nothing is ever destroyed.
class Connection {
 public:
  // FAILED_PRECONDITION in a process that was forked from one that had made a connection.
  static Result<std::shared_ptr<Connection>> Make(const client::ConnectOptions& options);
  ~Connection();

  // The permission to use the client. Close waits until it is given back.
  class Call {
   public:
    explicit Call(Connection* connection) : connection_(connection) {}
    Call(Call&& o) noexcept : connection_(std::exchange(o.connection_, nullptr)) {}
    Call& operator=(Call&&) = delete;
    ~Call();
    client::CacheClient& client() const { return *connection_->client_; }

   private:
    Connection* connection_;
  };
  // FAILED_PRECONDITION when it is closed, and in a forked process.
  Result<Call> Enter();

  // Cancels what can be cancelled, waits for the calls, and ends the session.
  void Close();
  std::stop_token stop_token() const { return stop_.get_token(); }

  // Remembers how the blocks of the namespace look. Errors as Validate.
  Status Remember(const NamespaceSpec& spec);
  // INVALID_ARGUMENT: it was not opened here.
  Result<std::shared_ptr<const OpenNamespace>> Find(const Digest& fingerprint);

  // Asks in a thread of the connection and does not wait, so the caller may hold the GIL.
  // FAILED_PRECONDITION: it is closed, or this is a forked process. RESOURCE_EXHAUSTED: too many
  // matches are waiting.
  Result<std::shared_ptr<PendingMatch>> Ask(PendingMatch::Question question);

  // Streams belong to the connection, which ends them before its client.
  Result<uint64_t> Watch(const client::WatchOptions& options);
  // Waits for at most `wait`. One at a time for each stream.
  Result<std::optional<client::CacheEvent>> NextEvent(uint64_t stream, Duration wait);
  void EndWatch(uint64_t stream);

  // Staged pushes belong to the connection, too.
  uint64_t Keep(std::unique_ptr<client::InPlacePush> push);
  // Hands it out, once. FAILED_PRECONDITION: it was already committed or dropped.
  Result<std::unique_ptr<client::InPlacePush>> TakeStaged(uint64_t id);
  // Gives its room back. May be repeated.
  void DropStaged(uint64_t id);

 private:
  explicit Connection(std::unique_ptr<client::CacheClient> client);

  struct Stream {
    std::unique_ptr<client::EventStream> events;
    bool reading = false;  // By a thread, now.
  };

  const pid_t process_;
  std::unique_ptr<client::CacheClient> client_;  // Null once closed; used while calls_ > 0.
  std::stop_source stop_;

  Mutex mu_;
  CondVar idle_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  uint32_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<Digest, std::shared_ptr<const OpenNamespace>> namespaces_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<ThreadPool> asking_ ABSL_GUARDED_BY(mu_);  // From the first question on.
  std::map<uint64_t, std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mu_);
  uint64_t next_stream_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<uint64_t, std::unique_ptr<client::InPlacePush>> staged_ ABSL_GUARDED_BY(mu_);
  uint64_t next_staged_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace cairn::python
