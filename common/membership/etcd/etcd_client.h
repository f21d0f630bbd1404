#pragma once
// Calls to an etcd cluster (v3, gRPC).

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"

namespace cairn::membership {

struct EtcdOptions {
  std::vector<std::string> endpoints = {};  // "host:port" each, of the members of one etcd cluster.
  // PEM files. `ca` set: TLS. `certificate` and `key`: this client shows them.
  std::string ca = {}, certificate = {}, key = {};
  std::string user = {}, password_file = {};   // Both or none. The file is read at each log-in.
  Duration timeout = std::chrono::seconds(2);  // Limit for one call.
  // Limit for each of the two calls of Withdraw.
  Duration last_timeout = std::chrono::milliseconds(500);
};

// One change of a record.
struct EtcdEvent {
  std::string key;
  std::string value;
  bool deleted = false;
};

struct EtcdRange {
  std::map<std::string, std::string> records = {};
  int64_t revision = 0;  // The revision of the whole store when it was read.
};

// Calls block for at most the timeout, and go to one member of etcd until that fails; the next call
// then goes to the next one. Calls carry `hasleader`, so that a member without a majority refuses
// instead of waiting. Thread-safe.
class EtcdClient {
 public:
  // INVALID_ARGUMENT names the setting that is missing or malformed.
  static Result<std::unique_ptr<EtcdClient>> Create(EtcdOptions options);
  ~EtcdClient();

  // Errors of all calls: UNAVAILABLE and DEADLINE_EXCEEDED: not reached, or no majority;
  // UNAUTHENTICATED and PERMISSION_DENIED: the user, or what it may do; FAILED_PRECONDITION: a file
  // cannot be read. They name the endpoint.

  // A lease of about `ttl`, in seconds at least 1. Returns its id.
  Result<int64_t> Grant(Duration ttl);
  // Returns what is left of the lease. NOT_FOUND: it is gone.
  Result<Duration> KeepAlive(int64_t lease);
  // The last words of a process: puts the record, then revokes the lease, which deletes it again.
  // Also after Cancel, which ends all other calls.
  Status Withdraw(const std::string& key, const std::string& value, int64_t lease);
  Status Put(const std::string& key, const std::string& value, int64_t lease);
  // All records whose key begins with `prefix`. `any_member`: the answer may be old, but a member
  // gives it without a majority.
  Result<EtcdRange> Range(const std::string& prefix, bool any_member);
  // Reports the changes after `revision` until the watch ends, and returns why. It has no timeout,
  // but ends when another call finds that the member of etcd which serves it does not answer.
  // OUT_OF_RANGE: the changes after `revision` are no longer kept. One watch at a time.
  Status Watch(const std::string& prefix, int64_t revision,
               const std::function<void(const std::vector<EtcdEvent>&)>& on_events);
  // Ends the watch and all calls with CANCELLED, and those that follow, except Withdraw.
  void Cancel();

 private:
  class Impl;
  explicit EtcdClient(std::unique_ptr<Impl> impl);
  Status PutWithin(Duration timeout, const std::string& key, const std::string& value,
                   int64_t lease);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::membership
