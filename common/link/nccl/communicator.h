#pragma once
// Communicators of NCCL: two ranks, non-blocking, a stream each.

#include <memory>
#include <vector>

#include "common/device/device.h"
#include "common/link/communicator.h"
#include "common/link/nccl/library.h"

namespace cairn::link::nccl {

// Thread-safe, as CommunicatorMaker says.
class Maker final : public CommunicatorMaker {
 public:
  Maker(std::shared_ptr<const Library> library, std::shared_ptr<device::Device> device)
      : library_(std::move(library)), device_(std::move(device)) {}

  int32_t version() const override { return library_->version(); }
  Result<UniqueId> NewId() override;
  std::shared_ptr<Communicator> Make(const UniqueId& id, int rank,
                                     std::vector<Window> windows) override;

 private:
  const std::shared_ptr<const Library> library_;
  const std::shared_ptr<device::Device> device_;
};

}  // namespace cairn::link::nccl
