#pragma once
// Calls to other members of the cluster over gRPC.

#include <grpcpp/channel.h>
#include <grpcpp/completion_queue.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "common/concurrency/executor.h"
#include "common/concurrency/mutex.h"
#include "common/net/credentials.h"
#include "common/rpc/channel.h"
#include "services/cache/cluster/peer/peer_links.h"
#include "services/cache/serve/rpc/peer_rule.h"

namespace cairn::cache {

// A connection to a member is made when a call needs it, and closed when it was idle for a minute.
// One thread of its own takes what comes, and runs the callbacks of short calls. Work that may take
// long runs on an executor, so that a Hello's answer does not wait for the hashes of a block: the
// end of a read, and the callbacks of Find and Match, which may end a match of this node.
class GrpcPeerLinks final : public PeerLinks {
 public:
  struct Options {
    PeerCaller self;
    bool tls = false;
    net::ChannelFiles files;
    std::string server_name = {};  // Expected in certificates. Empty: the address's.
    PeerRule rule = {};            // The rule that says which process may answer as which member.
    // For what may take long. It outlives the links, and runs or destroys what it has taken: until
    // then Stop waits. Work that it refuses runs on the links' own thread.
    Executor* executor = nullptr;
  };
  explicit GrpcPeerLinks(Options options);
  // Ends the calls. Their callbacks are destroyed.
  ~GrpcPeerLinks() override;
  // The same, before the members that callbacks use go away. Calls that come later do nothing.
  void Stop();

  void SetAddresses(const std::map<std::string, std::string>& addresses) override;
  void Hello(const std::string& address, const PeerHello& hello, TimePoint deadline,
             HelloDone done) override;
  void Announce(const std::string& member, const Announcement& message, TimePoint deadline,
                AnnounceDone done) override;
  void ExchangeBumps(const std::string& member, const BumpPage& page, TimePoint deadline,
                     BumpsDone done) override;
  void Find(const std::string& member, const std::vector<WaymarkHash>& waymarks,
            const Patience& patience, FindDone done) override;
  void Match(const std::string& member, const PeerNamespace& ns, std::span<const BlockKey> keys,
             PeerLease lease, const Patience& patience, MatchDone done) override;
  void Read(const std::string& member, const PeerNamespace& ns, const BlockKey& key,
            PeerBytes bytes, const Patience& patience, Duration silence, BlockSink* sink,
            ReadDone done) override;

  // The connection of these calls, for others to the same member. nullptr: nobody has the id. Any
  // thread; waits for nothing.
  std::shared_ptr<grpc::Channel> ChannelTo(const std::string& member) {
    const std::shared_ptr<Connection> to = To(member);
    return to == nullptr ? nullptr : to->channel;
  }

  // Ends reads that are silent, and closes idle connections. Some twenty times a second.
  void Tick();
  size_t connections() const;

 private:
  class Operation;
  template <typename Response, typename Done>
  class Unary;
  class BlockRead;
  struct Connection {
    explicit Connection(std::shared_ptr<grpc::Channel> to)
        : channel(std::move(to)), reconnect(channel) {}
    const std::shared_ptr<grpc::Channel> channel;
    rpc::Reconnect reconnect;
    TimePoint used{};
    size_t calls = 0;
  };

  // nullptr: nobody has the id.
  std::shared_ptr<Connection> To(const std::string& member);
  std::shared_ptr<Connection> ToAddress(const std::string& address);
  template <typename Request, typename Response, typename Done, typename Prepare>
  void Call(std::shared_ptr<Connection> to, const Request& request, TimePoint deadline, Done done,
            Prepare prepare, const std::string& trace = {});
  // False: the links have stopped.
  bool Begin(Operation* operation);
  // The last event of the operation has come: here or on the executor its callback runs, and it
  // ends.
  void Conclude(Operation* operation);
  void End(Operation* operation);
  void Poll();

  const Options options_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  grpc::CompletionQueue queue_;
  std::thread poller_;
  mutable Mutex mu_;
  CondVar ended_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::set<Operation*> open_ ABSL_GUARDED_BY(mu_);
  size_t alive_ ABSL_GUARDED_BY(mu_) = 0;  // Those, and those that are being destroyed.
  std::map<std::string, std::string> addresses_ ABSL_GUARDED_BY(mu_);  // By member.
  std::map<std::string, std::shared_ptr<Connection>> connections_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
