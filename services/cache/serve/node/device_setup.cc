#include "services/cache/serve/node/device_setup.h"

#include "common/device/driver.h"
#include "common/log/log.h"

namespace cairn::cache {
namespace {

constexpr char kUpHelp[] =
    "1 as long as the GPU was not lost. 0 without a label: there is no device tier, although the "
    "settings ask for one.";

Result<std::unique_ptr<DeviceTier>> Open(const NodeConfig& config, HostTier* host,
                                         const Clock* clock) {
  CAIRN_ASSIGN_OR_RETURN(auto driver, device::Driver::Load(config.device_library));
  return DeviceTier::Create(
      {.devices = config.device_ids,
       .pool = {.capacity_bytes = config.device_capacity, .chunk_bytes = config.device_chunk},
       .pin_host = config.device_pin_host},
      {.driver = std::move(driver), .host = host, .clock = clock});
}

}  // namespace

Result<OpenedDevices> OpenDevices(const NodeConfig& config, HostTier* host, const Clock* clock) {
  OpenedDevices opened;
  if (config.device_capacity == 0) return opened;
  auto tier = Open(config, host, clock);
  if (tier.ok()) {
    opened.tier = *std::move(tier);
    return opened;
  }
  if (tier.status().code() == StatusCode::kInvalidArgument) return tier.status();
  opened.missing = Message(tier.status());
  log::Warn("no_device_tier", {{"reason", opened.missing}});
  return opened;
}

std::string DegradedDevices(const OpenedDevices& devices) {
  if (!devices.missing.empty()) return "no device tier: " + devices.missing;
  if (devices.tier == nullptr || devices.tier->losses() == 0) return "";
  std::string lost;
  for (const DeviceTierStats& device : devices.tier->GetDeviceStats()) {
    if (device.lost) lost += (lost.empty() ? "" : ", ") + device.uuid;
  }
  return "lost GPUs: " + lost;
}

void ExportDevices(const OpenedDevices& devices, metrics::Registry* registry) {
  if (!devices.missing.empty()) {
    registry->AddCollector(
        [](metrics::Sink& sink) { sink.Gauge("cairn_device_up", kUpHelp, {}, 0); });
  }
  if (devices.tier == nullptr) return;
  registry->AddCollector([tier = devices.tier.get()](metrics::Sink& sink) {
    for (const DeviceTierStats& device : tier->GetDeviceStats()) {
      const metrics::Labels labels = {{"device", device.uuid}};
      const auto number = [](uint64_t value) { return static_cast<double>(value); };
      sink.Gauge("cairn_device_up", kUpHelp, labels, device.lost ? 0 : 1);
      sink.Gauge("cairn_device_memory_bytes", "Memory of the GPU that the device tier has taken.",
                 labels, number(device.memory_bytes));
      sink.Gauge("cairn_device_used_bytes", "Bytes of blocks on the GPU, rounding included.",
                 labels, number(device.used_bytes));
      sink.Gauge("cairn_device_shared_chunks", "Chunks of the GPU that same-node sessions have.",
                 labels, number(device.shared_chunks));
      sink.Counter("cairn_device_shortages_total",
                   "Times that the GPU had no memory left for the device tier.", labels,
                   number(device.shortages));
      sink.Counter("cairn_device_detour_bytes_total",
                   "Bytes copied through pinned buffers, because they were not pinned themselves.",
                   labels, number(device.detour_bytes));
    }
    sink.Gauge("cairn_device_pinned_bytes", "Memory of the host tier that is pinned for GPUs.", {},
               static_cast<double>(tier->pinned_bytes()));
    sink.Counter("cairn_device_pin_refusals_total",
                 "Times that the machine refused to pin memory of the host tier.", {},
                 static_cast<double>(tier->pin_refusals()));
  });
}

}  // namespace cairn::cache
