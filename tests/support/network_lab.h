#pragma once
// A network for real processes: machines of a test, with links that can be slow, lossy or cut.
//
//     machine 0 --- lab0 -+                 +- lab0 --- machine 1
//                         |  bridge, or     |
//     machine 2 --- lab0 -+  user-space     +- lab0 --- tester: this process
//                            switch
//
// A machine is a network namespace with an address of its own. The last place is this process, so
// its clients and checks use the network like a machine. Nothing of the host's network is seen or
// touched: the process itself moves into a namespace of its own before the first lab.
//
//     if (const Status can = NetworkLab::Available(); !can.ok()) GTEST_SKIP() << can.message();
//     lab = *NetworkLab::Create({.machines = 3});
//     server = *lab->Start(0, {.argv = {...}});      // Listens on lab->Address(0).
//     lab->Cut(0, lab->tester());                    // Its answers are lost, one way.
//
// Namespaces have no names, so they end with the processes and descriptors in them: with the lab,
// or when this process is killed.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "tests/support/frame_switch.h"
#include "tests/support/network_namespace.h"
#include "tests/support/process.h"

namespace cairn::testing {

// One at a time in a process. Not thread-safe.
class NetworkLab {
 public:
  enum class Wiring {
    kBridge,  // In the kernel, with SetRate. Frames have 1,500 bytes.
    kSwitch,  // In user space, with SetDelay, about 1 Gbit/s in all. Frames have 9,000 bytes.
  };
  struct Options {
    size_t machines = 2;  // Up to 16.
    Wiring wiring = Wiring::kBridge;
    LinkDelay delay = {};  // kSwitch: of every link and direction.
    uint64_t seed = 1;     // kSwitch.
  };

  // OK, or "no network lab: ..." with what this machine lacks or refuses. The first call moves the
  // calling thread, so it must come before the process starts threads, such as those of gRPC.
  static Status Available(Wiring wiring = Wiring::kBridge);
  static Result<std::unique_ptr<NetworkLab>> Create(const Options& options);
  // Kills its processes.
  ~NetworkLab();

  size_t machines() const { return places_.size() - 1; }
  // The place of this process.
  size_t tester() const { return places_.size() - 1; }
  std::string Address(size_t place) const;

  // Starts a process in a machine. The lab keeps it; Process::Kill and Signal are the caller's.
  Result<Process*> Start(size_t machine, Process::Options options);
  // Runs `function` in a thread of its own inside a machine, and returns after it. Sockets that it
  // makes are the machine's. Not for clients of gRPC, whose threads make sockets.
  void Run(size_t machine, const std::function<void()>& function) const;
  const NetworkNamespace& network(size_t place) const { return places_[place].network; }
  // For EtcdCluster and NameServer, which must go before the lab.
  ServerPlace PlaceOf(size_t machine) const { return {Address(machine), &network(machine)}; }

  // The rate of one place, to it and from it. 0: as fast as it can. FAILED_PRECONDITION: not
  // kBridge.
  Status SetRate(size_t place, uint64_t bits_per_second);
  // kSwitch only.
  void SetDelay(size_t from, size_t to, const LinkDelay& delay);
  // Drops `per_mille` of 1,000 packets of one direction. They vanish silently, as in a real
  // network.
  Status SetLoss(size_t from, size_t to, uint32_t per_mille);
  // Drops all of one direction, until Restore.
  Status Cut(size_t from, size_t to) { return SetLoss(from, to, 1000); }
  Status Restore(size_t from, size_t to) { return SetLoss(from, to, 0); }
  // Between one place and all others, both ways.
  Status Isolate(size_t place);
  Status RestoreAll();

 private:
  struct Place {
    NetworkNamespace network;
    std::vector<uint32_t> loss;  // From each place, of 1,000.
    bool shaped = false;
  };
  NetworkLab() = default;
  Status WireBridge();
  Status WireSwitch(const Options& options);
  Status GiveAddress(size_t place);
  Status ApplyLoss(size_t to);

  std::vector<Place> places_;  // The machines, then the tester.
  std::vector<NetworkNamespace> bridge_;
  std::unique_ptr<FrameSwitch> switch_;
  std::vector<std::unique_ptr<Process>> processes_;
};

}  // namespace cairn::testing
