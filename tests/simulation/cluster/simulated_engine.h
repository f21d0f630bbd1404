#pragma once
// The engine with which a simulated process keeps its blocks, and the questions of a simulation to
// it.

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "services/cache/store/engine/for_peers.h"
#include "services/cache/store/tier/testing/fake_tier.h"

namespace cairn::testing {

// Where a block lies.
using BlockId = std::pair<Digest, BlockKey>;

// The part that survives the death of a process that has the light engine.
struct LightDisk {
  std::map<Digest, uint32_t> namespaces;             // Tokens of a block.
  std::vector<std::pair<BlockId, uint64_t>> blocks;  // With their stamps, oldest first.
  std::vector<cache::Bump> bumps;
};

// The disk of a machine. Each engine has its own part of it.
struct SimulatedDisk {
  LightDisk light = {};
  std::shared_ptr<const cache::testing::FakeTier> whole = nullptr;  // nullptr: empty.
};

struct SimulatedNamespace {
  NamespaceSpec spec;
  Digest fingerprint;
};

// The fault of a disk, for the next operations.
enum class DiskFault : uint8_t { kReadsFail, kWritesFail, kReadsAreDamaged, kNone };

// Told of what must never happen.
using TellWrong = std::function<void(const std::string& what)>;

// The bytes of each block contain its key and a stamp: the digest of the bumps that its writer
// knew. So an engine notices wrong bytes, and blocks from before a bump.
//
// All in one thread, on the clock of the process. No call waits.
class SimulatedEngine {
 public:
  virtual ~SimulatedEngine() = default;

  virtual cache::CacheEngine& cache() = 0;

  // --- Requests of clients

  virtual void Know(const SimulatedNamespace& ns) = 0;
  // A worker has computed these blocks.
  virtual void Store(const SimulatedNamespace& ns, std::span<const BlockKey> keys) = 0;
  // A request: what is here, then what the source has. Counts of blocks.
  struct Outcome {
    uint32_t local = 0, located = 0, read = 0, failed = 0;
    Status lookup = OkStatus();
  };
  using Done = std::function<void(const Outcome&)>;
  virtual void Get(const SimulatedNamespace& ns, std::vector<BlockKey> keys, Done done) = 0;

  // --- Events

  // The process ends: requests that are under way go on no further.
  virtual void Close() = 0;
  // After Close: whatever the disk does now is lost, but it comes to its end.
  virtual void FinishDisk() {}
  virtual SimulatedDisk Save(bool power_loss) const = 0;
  virtual void Tick() = 0;  // Every 100 ms.
  virtual void Break(DiskFault /*fault*/, int /*operations*/) {}

  // --- Contents

  virtual bool Has(const Digest& fingerprint, const BlockKey& key) = 0;
  // How many of the first keys are here.
  virtual uint32_t Prefix(const Digest& fingerprint, std::span<const BlockKey> keys) = 0;
  virtual bool Knows(const Digest& fingerprint) const = 0;
  virtual size_t sessions() const = 0;
  virtual size_t leases() const = 0;
  // Blocks that came from members, and copies that a bump overtook.
  virtual uint64_t accepted() const = 0;
  virtual uint64_t outdated() const = 0;
};

}  // namespace cairn::testing
