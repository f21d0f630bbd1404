#pragma once
// The device tier of a node as its settings ask for it, and its metrics.

#include <memory>
#include <string>

#include "common/metrics/metrics.h"
#include "services/cache/serve/node/node_config.h"
#include "services/cache/store/tier/device/device_tier.h"

namespace cairn::cache {

// At most one of the two is set; neither: the settings ask for no device tier.
struct OpenedDevices {
  std::unique_ptr<DeviceTier> tier;
  std::string missing;  // Why the node goes on without.
};

// INVALID_ARGUMENT: the settings cannot be right anywhere. Everything else that is missing, such as
// a driver or a GPU, is logged, and the node serves without the tier. `host` outlives the tier.
// Without device.capacity it does nothing, and loads nothing.
Result<OpenedDevices> OpenDevices(const NodeConfig& config, HostTier* host, const Clock* clock);

// Why the node is less than it was set up to be: what is missing, or which GPU is lost. Empty:
// nothing. Any thread.
std::string DegradedDevices(const OpenedDevices& devices);

// Metrics of the GPUs, for as long as the tier is there, or that it is missing. No effect if the
// settings ask for none.
void ExportDevices(const OpenedDevices& devices, metrics::Registry* registry);

}  // namespace cairn::cache
