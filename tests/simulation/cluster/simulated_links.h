#pragma once
// Calls between members as packets of the simulated network.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "services/cache/cluster/members/peer_host.h"
#include "services/cache/cluster/peer/peer_links.h"

namespace cairn::testing {

class ClusterWorld;
class Process;

// The links of one process. A request that is lost, or whose answer is, ends with its deadline. A
// machine without a process refuses at once, and a process that dies breaks the calls to it.
class SimulatedLinks final : public cache::PeerLinks {
 public:
  SimulatedLinks(ClusterWorld* world, Process* self) : world_(*world), self_(*self) {}
  ~SimulatedLinks() override { Stop(); }
  // Destroys all callbacks. Calls that come later do nothing.
  void Stop();
  // The process that listened at this machine has died.
  void Broken(size_t machine, uint64_t life);

  void SetAddresses(const std::map<std::string, std::string>& addresses) override {
    addresses_ = addresses;
  }
  void Hello(const std::string& address, const cache::PeerHello& hello, TimePoint deadline,
             HelloDone done) override;
  void Announce(const std::string& member, const cache::Announcement& message, TimePoint deadline,
                AnnounceDone done) override;
  void ExchangeBumps(const std::string& member, const cache::BumpPage& page, TimePoint deadline,
                     BumpsDone done) override;
  void Find(const std::string& member, const std::vector<cache::WaymarkHash>& waymarks,
            const cache::Patience& patience, FindDone done) override;
  void Match(const std::string& member, const cache::PeerNamespace& ns,
             std::span<const BlockKey> keys, cache::PeerLease lease,
             const cache::Patience& patience, MatchDone done) override;
  void Read(const std::string& member, const cache::PeerNamespace& ns, const BlockKey& key,
            cache::PeerBytes bytes, const cache::Patience& patience, Duration silence,
            cache::BlockSink* sink, ReadDone done) override;

  struct Counts {
    uint64_t hellos = 0, announces = 0, bumps = 0, finds = 0, matches = 0, reads = 0;
    uint64_t announced_waymarks = 0;
  };
  const Counts& counts() const { return counts_; }

  // A block on its way out of this process.
  struct Serving {
    std::unique_ptr<cache::PeerHost::Read> read = {};
    cache::StoredBlock block = {};
    uint64_t bytes = 0, sent = 0;
    size_t reader = 0;
    uint64_t reader_life = 0, call = 0;
    TimePoint deadline{};  // A time of the world.
  };

 private:
  struct Call {
    size_t machine = 0;
    uint64_t life = 0;
    std::function<void(const Status&)> fail;
    std::shared_ptr<void> answer = {};  // A function whose type the caller knows.
    // For a read:
    cache::BlockSink* sink = nullptr;
    Duration silence{0};
    TimePoint heard{};
    std::vector<std::span<std::byte>> room = {};
  };
  // Some bytes of a block, from `begin` on.
  struct Piece {
    cache::SourceBlock block;
    uint64_t begin = 0;
    std::vector<std::byte> bytes;
  };
  template <typename Answer>
  void Ask(const std::string& address, int kind, TimePoint deadline,
           std::function<Answer(Process&)> serve, std::function<void(Answer)> done);
  template <typename Answer>
  void Answered(uint64_t call, Answer answer);
  uint64_t Begin(const std::string& address, int kind, TimePoint deadline, Call call);
  void Fail(uint64_t call, const Status& status);
  const std::string* AddressOf(const std::string& member) const;

  // The steps of a read, at the holder and at the reader.
  static void Tell(ClusterWorld& world, size_t from, size_t to, uint64_t life,
                   std::function<void(SimulatedLinks&)> what);
  static void Serve(ClusterWorld& world, Process& holder, const cache::PeerCaller& caller,
                    Serving serving, const cache::PeerNamespace& ns, const BlockKey& key);
  static void Refuse(ClusterWorld& world, const Process& holder, const Serving& serving,
                     const Status& status, const std::vector<std::string>& others);
  static void WaitForBlock(ClusterWorld& world, size_t machine, uint64_t life, uint64_t number);
  static bool IsOver(ClusterWorld& world, const Process& holder, const Serving& serving);
  static void SendPiece(ClusterWorld& world, size_t machine, uint64_t life, uint64_t number);
  // Bytes on their way are a copy: the holder may end before they arrive.
  static Piece CopyPiece(const cache::StoredBlock& block, uint64_t begin, uint64_t size);
  void Arrived(uint64_t call, const Piece& piece);
  void EndRead(uint64_t call, const Status& status, cache::PeerReadAnswer answer);
  void WatchSilence(uint64_t call, TimePoint deadline);

  ClusterWorld& world_;
  Process& self_;
  bool ended_ = false;
  std::map<std::string, std::string> addresses_;
  uint64_t next_ = 1;
  std::map<uint64_t, Call> calls_;
  Counts counts_;
};

}  // namespace cairn::testing
