#pragma once
// Members that register themselves in etcd.

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "common/concurrency/mutex.h"
#include "common/membership/discovery.h"
#include "common/membership/etcd/etcd_client.h"
#include "common/membership/member_table.h"

namespace cairn::membership {

// Each process writes one record under `prefix`, bound to a lease that it renews, and watches the
// others' records. The record of a process that was killed goes when its lease ends, and the member
// after its grace (MemberTable): a process whose lease ended without its fault has then had the
// time to ask each member of etcd for a new one. While etcd is away or has no majority, the view
// stays as it was, and no grace ends. Two threads, which block in calls to etcd. Thread-safe.
class EtcdDiscovery final : public Discovery {
 public:
  struct Options {
    EtcdOptions etcd = {};
    // The prefix of the keys of this cluster's members: "cairn/NAME/members/".
    std::string prefix = {};
    Duration ttl = std::chrono::seconds(10);
  };
  // Errors as EtcdClient::Create.
  static Result<std::unique_ptr<EtcdDiscovery>> Create(Options options);
  ~EtcdDiscovery() override;  // Stop().

  Status Start(const Member& self, OnView on_view) override;
  void Stop() override;
  DiscoveryHealth health() const override;

 private:
  EtcdDiscovery(Options options, std::unique_ptr<EtcdClient> client);

  // Runs on the thread that keeps this process's own record.
  void KeepRegistered();
  // One step of it; returns how long to wait.
  Duration Register();
  // Runs on the thread that follows the records of the others.
  void Follow();
  // A reading and the watch after it. Returns when the watch ends.
  void FollowOnce();
  void Apply(const std::vector<EtcdEvent>& events);
  void Note(const Status& status);
  // Hands out the view if it differs. Returns when a member's grace ends.
  TimePoint Publish();
  // True: stopped.
  bool Wait(Duration duration, bool until_own_record_is_missing);

  const Options options_;
  const std::unique_ptr<EtcdClient> client_;
  // This process's; constant from Start on.
  std::string key_, record_, last_record_;

  // The lease of the first thread.
  int64_t lease_ = 0;  // 0: none.
  bool written_ = false;

  // Held while a view is handed out, so that views come in order.
  Mutex publish_mu_;
  OnView on_view_ ABSL_GUARDED_BY(publish_mu_);
  View published_ ABSL_GUARDED_BY(publish_mu_);

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool own_record_missing_ ABSL_GUARDED_BY(mu_) = false;
  MemberTable table_ ABSL_GUARDED_BY(mu_);
  DiscoveryHealth health_ ABSL_GUARDED_BY(mu_);
  std::thread registering_, following_;
};

}  // namespace cairn::membership
