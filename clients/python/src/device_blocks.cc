#include "clients/python/src/device_blocks.h"

#include "clients/cpp/src/device/device_importer.h"
#include "common/device/driver.h"
#include "common/log/log.h"

namespace cairn::python {
namespace {

client::DeviceRead ToRead(pages::ChunkLoader::Outcome outcome) {
  switch (outcome) {
    case pages::ChunkLoader::Outcome::kGood:
      return client::DeviceRead::kGood;
    case pages::ChunkLoader::Outcome::kWrong:
      return client::DeviceRead::kWrong;
    case pages::ChunkLoader::Outcome::kUnread:
      return client::DeviceRead::kUnread;
  }
  return client::DeviceRead::kUnread;
}

}  // namespace

std::vector<client::DeviceRead> DeviceBlocks::Read(std::span<const client::DeviceSlice> slices,
                                                   uint32_t first_block) {
  std::vector<client::DeviceRead> outcomes(slices.size(), client::DeviceRead::kUnread);
  std::vector<pages::ChunkLoader::Source> sources;
  std::vector<size_t> indices;
  for (size_t i = 0; i < slices.size(); ++i) {
    const client::DeviceSlice& slice = slices[i];
    const size_t index = slice.slice.block - first_block;
    if (index >= blocks_.size()) continue;
    sources.push_back({.address = slice.address,
                       .bytes = slice.slice.slice_bytes,
                       .xxh3 = slice.slice.xxh3,
                       .block = blocks_[index],
                       .first_position = positions_[index]});
    indices.push_back(i);
  }
  const auto loaded = loader_.Load(fence_, sources);
  for (size_t i = 0; i < indices.size(); ++i) outcomes[indices[i]] = ToRead(loaded[i]);
  return outcomes;
}

std::shared_ptr<client::DeviceImporter> OpenImporter(const std::string& library, uint32_t device) {
  const auto open = [&]() -> Result<std::shared_ptr<client::DeviceImporter>> {
    CAIRN_ASSIGN_OR_RETURN(const auto driver, device::Driver::Load(library));
    CAIRN_ASSIGN_OR_RETURN(const device::DeviceInfo info, driver->Find(std::to_string(device)));
    CAIRN_ASSIGN_OR_RETURN(auto opened, driver->Open(info.ordinal));
    return client::NewDeviceImporter(std::move(opened));
  };
  auto importer = open();
  if (importer.ok()) return *std::move(importer);
  log::Info("no_chunks_of_device",
            {{"device", log::Num(device)}, {"reason", Message(importer.status())}});
  return nullptr;
}

}  // namespace cairn::python
