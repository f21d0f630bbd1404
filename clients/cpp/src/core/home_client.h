#pragma once
// CacheClient over several nodes, one of which is its home.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/client/cache_client.h"
#include "clients/cpp/src/core/home_chooser.h"
#include "clients/cpp/src/core/node_client.h"
#include "clients/cpp/src/core/step_thread.h"
#include "common/concurrency/mutex.h"

namespace cairn::client {

// Where a node is.
struct NodeAddress {
  std::string address = {};
  std::string name = {};  // The name that was looked up for it. Empty: none.
};

// Has a client for the home, one for the trial of the chooser (home_chooser.h), and those of nodes
// whose leases are still held or that a call used in the last seconds. A lease names the client
// that it belongs to. ConnectOptions says which calls try again at another node.
//
//   call ──► home's client ──UNAVAILABLE, or too slow──► the next one's ──► answer
//   Step ──► looks names up, watches the clients, keeps the trial, closes what nobody uses
//
// Thread-safe.
class HomeClient final : public CacheClient {
 public:
  // Makes a client that opens these namespaces in each session. Does not wait.
  using MakeClient = std::function<Result<std::unique_ptr<NodeClient>>(
      const NodeAddress&, const std::vector<KnownNamespace>&)>;
  struct Found {
    std::vector<NodeAddress> nodes = {};
    Status status = {};  // Not OK: there may be more.
  };
  // All addresses there are now. May wait.
  using LookUp = std::function<Found()>;
  struct Options {
    HomeChooser::Options choice = {};
    // Between two look-ups. 0: what there is at the beginning stays.
    Duration look_up_interval{0};
    // A thread of the client makes the steps. Otherwise its owner calls Step, which is also what
    // opens the sessions of trials.
    bool has_thread = false;
  };

  // Looks up before it returns if the addresses never change, so `look_up` must not wait then.
  // `clock` must outlive the client.
  HomeClient(Options options, const Clock* clock, LookUp look_up, MakeClient make_client);
  ~HomeClient() override;

  Result<OpenedNamespace> OpenNamespace(const NamespaceSpec& spec, const CallOptions& options,
                                        const NamespaceOptions& how = {}) override;
  Result<MatchOutcome> Match(const Digest& fingerprint, std::span<const BlockKey> keys,
                             const MatchOptions& options) override;
  Status Fetch(const Lease& lease, const FetchRange& range, FetchSink& sink,
               const FetchOptions& options) override;
  Status FetchRows(const Lease& lease, const RowLayout& layout, uint32_t layer,
                   std::span<const RowGroup> groups, RowSink& sink,
                   const FetchOptions& options) override;
  Result<MatchOutcome> Get(const Digest& fingerprint, std::span<const BlockKey> keys,
                           const LayerRange& layers, FetchSink& sink, const MatchOptions& match,
                           const FetchOptions& fetch) override;
  Result<std::vector<Status>> Push(const Digest& fingerprint, std::span<const PartToPush> parts,
                                   const PushOptions& options) override;
  Result<std::unique_ptr<InPlacePush>> BeginPush(const Digest& fingerprint,
                                                 std::span<const PartToWrite> parts,
                                                 const PushOptions& options) override;
  Result<PrefetchOutcome> Prefetch(const Digest& fingerprint, std::span<const BlockKey> keys,
                                   Duration needed_in, const CallOptions& options) override;
  Result<std::vector<std::optional<TierKind>>> Exists(const Digest& fingerprint,
                                                      std::span<const BlockKey> keys,
                                                      const CallOptions& options) override;
  Result<Duration> RenewLease(const Lease& lease, Duration ttl,
                              const CallOptions& options) override;
  Status Flush(const CallOptions& options) override;
  Result<NodeStats> Stat(const CallOptions& options) override;
  Result<std::unique_ptr<EventStream>> WatchEvents(const WatchOptions& options) override;
  ClientStats GetStats() const override;

  // For a StepThread. May wait for names, and for the answer of a trial.
  TimePoint Step();
  bool WaitForWork(TimePoint until);
  void Stop();

 private:
  struct Tag;
  struct Node;
  class HomeEvents;
  class TaggedPush;
  using NodePtr = std::shared_ptr<Node>;

  // Returns call(client, time that it may take), if need be once more at further nodes.
  // `may_repeat` is asked before each.
  template <typename Answer, typename Call>
  Answer Repeat(Duration within, Call call, const std::function<bool()>& may_repeat = {});
  // Returns call(home).
  template <typename Answer, typename Call>
  Answer Once(Duration within, Call call);
  // The node for the next attempt, which is added to `tried`. `*last`: no other one can follow. An
  // error if there is no node: UNAVAILABLE, or that of its client.
  Result<NodePtr> Choose(TimePoint deadline, std::vector<std::string>* tried, bool* last);
  // Waits until there is an address.
  Status WaitForAddresses(TimePoint deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The node that the lease is from. INVALID_ARGUMENT: no lease is held. NOT_FOUND: its client is
  // closed.
  Result<NodePtr> NodeOf(const Lease& lease);
  Status Remember(const NamespaceSpec& spec, const NamespaceOptions& how);

  Result<NodePtr> Open(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Tells the chooser how the node looks.
  void Look(const Node& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  const std::string& Home() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeAddresses(const Found& found) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes the clients that nobody uses.
  std::vector<NodePtr> TakeUnused(const std::optional<std::string>& trial)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LookUpIfDue();

  const Options options_;
  const Clock* const clock_;
  const LookUp look_up_;
  const MakeClient make_client_;

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  HomeChooser chooser_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> names_ ABSL_GUARDED_BY(mu_);  // By address.
  std::optional<Status> looked_up_ ABSL_GUARDED_BY(mu_);           // The last look-up.
  TimePoint next_look_up_ ABSL_GUARDED_BY(mu_) = {};
  TimePoint earliest_look_up_ ABSL_GUARDED_BY(mu_) = {};
  std::map<std::string, NodePtr> nodes_ ABSL_GUARDED_BY(mu_);  // By address.
  std::string told_home_ ABSL_GUARDED_BY(mu_);                 // The last home that was logged.
  std::map<Digest, KnownNamespace> namespaces_ ABSL_GUARDED_BY(mu_);
  ClientStats gone_ ABSL_GUARDED_BY(mu_);         // The counts of clients that are closed.
  std::optional<StepThread<HomeClient>> thread_;  // Last: it uses everything above.
};

}  // namespace cairn::client
