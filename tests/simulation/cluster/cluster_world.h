#pragma once
// Machines, the network between them, and the processes that run there: a whole cluster in one
// thread.
//
//   Process ─ SimulatedLinks ─► PacketNetwork ─► PeerHost of another Process
//      └ DnsDiscovery ─► NameServer ─► what the world says, or lies
//
// Everything comes from one seed: the same calls in the same order give the same trace.

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/simulation/cluster/packet_network.h"
#include "tests/simulation/cluster/process.h"

namespace cairn::testing {

// The answers that a process gets when it asks who may exist.
enum class NamesAre { kComplete, kPartial, kStale, kFlapping, kEmpty, kFailing, kAsleep };

// Not thread-safe.
class ClusterWorld {
 public:
  struct Options {
    uint64_t seed = 1;
    size_t machines = 8;
    PacketNetwork::Options network = {};
    Process::Options process = {};  // Names and numbers are filled in.
    bool clocks_differ = true;
    bool versions_differ = true;
    uint64_t piece_bytes = 1 << 16;  // Bytes of a read in a packet.
  };
  explicit ClusterWorld(Options options);
  ~ClusterWorld();

  // --- Events of machines

  enum class Disk { kOld, kEmpty, kCopy };
  // Starts a process, with what is on the disk of the machine.
  void Start(size_t machine, Disk disk = Disk::kOld);
  void Kill(size_t machine, bool power_loss = false);
  // Says that it leaves, and ends a second later.
  void Leave(size_t machine);
  void CopyDisk(size_t machine);
  // A new machine with a copy of a disk, and so with the id that is on it.
  void Clone(size_t from, size_t to);
  void SetNames(size_t machine, NamesAre names);
  // Discovery names these from now on, whatever runs there.
  void NameWhoLives();

  // --- Time

  Agenda& agenda() { return agenda_; }
  TimePoint Now() const { return agenda_.Now(); }
  void Run(Duration time) { agenda_.RunUntil(Now() + time); }

  // --- Contents

  size_t machines() const { return machines_.size(); }
  Process* process(size_t machine) { return machines_[machine].process.get(); }
  // nullptr: this life has ended.
  Process* process(size_t machine, uint64_t life);
  uint64_t life(size_t machine) const { return machines_[machine].lives; }
  PacketNetwork& network() { return network_; }
  const Options& options() const { return options_; }
  uint64_t Random() { return random_(); }
  static std::string AddressOf(size_t machine);
  static size_t MachineAt(const std::string& address);
  // All processes, but those whose id a newer one has, or had.
  std::vector<Process*> Newest();

  // --- Views

  // Adds to the trace.
  void Note(uint64_t kind, uint64_t a, uint64_t b, uint64_t c = 0);
  uint64_t trace() const { return trace_; }
  // Something must never happen, and did.
  void Wrong(const std::string& what);
  const std::vector<std::string>& wrong() const { return wrong_; }
  // A process answers a call, and must not make one meanwhile.
  void EnterHost() { ++in_host_; }
  void LeaveHost() { --in_host_; }
  bool in_host() const { return in_host_ > 0; }

  // --- For processes

  // nullopt: no answer.
  std::optional<std::vector<size_t>> NamesFor(size_t machine, Status* error);
  NamesAre names_are(size_t machine) const { return machines_[machine].names; }
  TimePoint names_since(size_t machine) const { return machines_[machine].names_since; }

 private:
  struct Machine {
    std::string id;
    uint64_t epoch = 0;
    uint64_t lives = 0;
    std::unique_ptr<Process> process;
    SimulatedDisk disk, copy;
    bool named = false;
    NamesAre names = NamesAre::kComplete;
    TimePoint names_since{};
    std::vector<size_t> stale;
    double rate = 1;
  };
  std::vector<size_t> Named() const;

  const Options options_;
  Agenda agenda_;
  std::mt19937_64 random_;
  PacketNetwork network_;
  std::vector<Machine> machines_;
  uint64_t trace_ = 0;
  std::vector<std::string> wrong_;
  int in_host_ = 0;
};

}  // namespace cairn::testing
