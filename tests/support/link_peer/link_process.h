#pragma once
// One process of a link, with everything that a product would wire: a device with one memory, NCCL,
// reader and holder, and calls over gRPC. Tests use it in their own process, and in link_peer.cc.
//
// Thread-compatible.

#include <grpcpp/channel.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/lifecycle/lifecycle.h"
#include "common/link/link_holder.h"
#include "common/link/link_reader.h"
#include "common/link/nccl/communicator.h"
#include "common/metrics/metrics.h"
#include "common/rpc/call_metrics.h"
#include "common/rpc/context.h"
#include "common/rpc/server.h"
#include "protocol/link/grpc_link_calls.h"

namespace cairn::testing {

// The byte at a place of a memory that was filled with a seed.
inline uint8_t PatternAt(uint32_t seed, uint64_t at) {
  return static_cast<uint8_t>((at * 2654435761u + seed * 40503u) >> 13);
}

class LinkProcess {
 public:
  struct Options {
    std::string name = "reader";
    std::shared_ptr<device::Device> device;
    std::shared_ptr<const link::nccl::Library> nccl;
    uint64_t bytes = 1 << 20;
    link::LinkOptions links = {.host = "this machine"};
    link::LinkTable::Options table = {};
    link::PeerHistory::Options history = {};
  };
  explicit LinkProcess(Options options);
  // Ends the links, and waits until they are gone or abandoned.
  ~LinkProcess();

  // Serves the holder on loopback. Its port.
  Result<int> Serve();
  void SetPeer(const std::string& name, int port);
  // Fills the whole memory.
  Status Fill(uint32_t seed);
  Result<std::vector<uint8_t>> Read();

  // Brings `count` pieces of the peer's memory 0 to shuffled places of this one, and waits.
  Status Fetch(const std::string& peer, uint64_t pieces, Duration timeout);
  // Whether the last fetch brought what a memory with the seed has there.
  Status Verify(uint32_t seed);

  link::LinkReader& reader() { return *reader_; }
  link::LinkTable& table() { return table_; }
  const link::Plan& plan() const { return plan_; }
  // How many owners the bytes of the last fetch have: 1 once nothing may touch them.
  long kept() const { return keep_.use_count(); }

 private:
  const Options options_;
  SteadyClock& clock_ = SteadyClock::Get();
  Timers timers_;
  device::DeviceMemory memory_;
  link::Memories memories_;
  link::LinkTable table_;
  link::nccl::Maker maker_;
  link::PeerHistory reader_history_, holder_history_;
  Mutex mu_;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<link::GrpcLinkCalls> calls_;
  std::shared_ptr<link::LinkReader> reader_;
  std::shared_ptr<link::LinkHolder> holder_;
  metrics::Registry registry_;
  rpc::CallMetrics metrics_{&registry_};
  Gate gate_;
  rpc::Context context_;
  rpc::Server server_;
  link::Plan plan_;
  std::shared_ptr<int> keep_ = std::make_shared<int>(0);
};

}  // namespace cairn::testing
