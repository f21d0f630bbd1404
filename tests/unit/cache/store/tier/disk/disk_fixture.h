#pragma once
// A disk tier in a directory of the test's own.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "services/cache/store/tier/disk/disk_tier.h"
#include "tests/conformance/cache/tier/tier_conformance.h"

namespace cairn::cache::testing {

inline constexpr uint64_t kMiB = 1 << 20;

class DiskFixture : public ::testing::Test {
 protected:
  DiskTierOptions Options(uint64_t capacity = 16 * kMiB) {
    DiskTierOptions options;
    options.directory = directory_.path();
    options.capacity_bytes = capacity;
    options.min_free_bytes = 0;
    return options;
  }
  // Opened and recovered; nullptr after a failure.
  static std::unique_ptr<DiskTier> Open(const DiskTierOptions& options,
                                        std::vector<Extent>* found = nullptr) {
    auto tier = DiskTier::Open(options);
    if (!tier.ok()) {
      ADD_FAILURE() << ToString(tier.status());
      return nullptr;
    }
    const Status recovered = (*tier)->Recover([&](const Extent& extent, std::string_view) {
      if (found) found->push_back(extent);
      return true;
    });
    if (!recovered.ok()) {
      ADD_FAILURE() << ToString(recovered);
      return nullptr;
    }
    return std::move(*tier);
  }
  static Extent Put(DiskTier& tier, uint64_t seed, uint32_t length) {
    const auto extent = tier.Reserve(length);
    EXPECT_OK(extent);
    if (!extent.ok()) return {};
    EXPECT_OK(conformance::WriteAndWait(tier, *extent, std::to_string(seed),
                                        conformance::Pattern(seed, length)));
    return *extent;
  }
  static void ExpectBytes(DiskTier& tier, uint64_t seed, const Extent& extent) {
    std::vector<std::byte> bytes(extent.length);
    ASSERT_OK(conformance::ReadAndWait(tier, extent, bytes)) << "seed " << seed;
    ASSERT_EQ(bytes, conformance::Pattern(seed, extent.length)) << "seed " << seed;
  }
  // Value files in the directory.
  std::vector<std::filesystem::path> ValueFilesOnDisk() const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path() + "/values"))
      files.push_back(entry.path());
    return files;
  }
  uint64_t ValueBytesOnDisk() const {
    uint64_t bytes = 0;
    for (const auto& path : ValueFilesOnDisk()) bytes += std::filesystem::file_size(path);
    return bytes;
  }

  conformance::ScratchDirectory directory_{"disk"};
};

}  // namespace cairn::cache::testing
