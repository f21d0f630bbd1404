#include "services/worker/engine/worker_device.h"

#include <charconv>

#include "clients/cpp/src/device/device_importer.h"
#include "common/log/log.h"

namespace cairn::worker {

Result<std::optional<uint32_t>> ParseWorkerDevice(std::string_view name) {
  if (name == "cpu") return std::optional<uint32_t>();
  constexpr std::string_view kPrefix = "cuda:";
  uint32_t ordinal = 0;
  const char* const end = name.data() + name.size();
  const char* const number = name.starts_with(kPrefix) ? name.data() + kPrefix.size() : end;
  const auto [at, error] = std::from_chars(number, end, ordinal);
  if (number == end || error != std::errc() || at != end) {
    return InvalidArgument("option 'device': got '{}', expected cpu, or cuda:N for GPU number N",
                           name);
  }
  return std::optional<uint32_t>(ordinal);
}

Result<std::shared_ptr<device::Device>> OpenWorkerDevice(const std::string& name,
                                                         const std::string& library) {
  CAIRN_ASSIGN_OR_RETURN(const std::optional<uint32_t> ordinal, ParseWorkerDevice(name));
  if (!ordinal) return std::shared_ptr<device::Device>();
  const auto open = [&]() -> Result<std::shared_ptr<device::Device>> {
    CAIRN_ASSIGN_OR_RETURN(const auto driver, device::Driver::Load(library));
    CAIRN_ASSIGN_OR_RETURN(const device::DeviceInfo info, driver->Find(std::to_string(*ordinal)));
    return driver->Open(info.ordinal);
  };
  auto opened = open();
  if (!opened.ok()) return Annotate(opened.status(), fmt::format("device: got '{}'", name));
  return opened;
}

Result<std::shared_ptr<client::DeviceImporter>> OpenWorkerImporter(const std::string& name,
                                                                   const std::string& library) {
  CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<device::Device> device, OpenWorkerDevice(name, library));
  if (device == nullptr) return std::shared_ptr<client::DeviceImporter>();
  auto importer = client::NewDeviceImporter(std::move(device));
  if (importer.ok()) return importer;
  log::Info("no_chunks_of_device", {{"device", name}, {"reason", Message(importer.status())}});
  return std::shared_ptr<client::DeviceImporter>();
}

}  // namespace cairn::worker
