#pragma once
// Blocks of an engine on a GPU, into which a fetch puts what lies in a node's device tier.

#include <memory>
#include <string>
#include <vector>

#include "cairn/client/device_importer.h"
#include "clients/pages/chunk_loader.h"
#include "clients/python/src/block_sink.h"

namespace cairn::python {

// Knows no Python: is called without the GIL. Used by one thread. `loader` and `fence` outlive it.
class DeviceBlocks final : public DeviceTarget {
 public:
  // One of the engine's blocks, and the position of its first token, for each block of a fetch.
  // REQUIRES: as many of both, and blocks that the engine has.
  DeviceBlocks(pages::ChunkLoader* loader, const pages::Fence& fence, std::vector<uint32_t> blocks,
               std::vector<uint64_t> positions)
      : loader_(*loader),
        fence_(fence),
        blocks_(std::move(blocks)),
        positions_(std::move(positions)) {}

  std::string uuid() const override { return loader_.device().uuid; }
  std::vector<client::DeviceRead> Read(std::span<const client::DeviceSlice> slices,
                                       uint32_t first_block) override;

 private:
  pages::ChunkLoader& loader_;
  const pages::Fence& fence_;
  const std::vector<uint32_t> blocks_;
  const std::vector<uint64_t> positions_;
};

// The importer of GPU number `device` of the library (device::Driver::Load). Null: there is none,
// or its memory cannot be shared between processes.
std::shared_ptr<client::DeviceImporter> OpenImporter(const std::string& library, uint32_t device);

}  // namespace cairn::python
