// The device tier over the fake device: work happens late, in a seeded order, and every access that
// no wait orders fails the test.

#include "services/cache/store/tier/device/device_tier.h"

#include "tests/conformance/cache/tier/tier_conformance.h"
#include "tests/support/fake_device/fake_devices.h"

namespace cairn::cache::conformance {
namespace {

// The tier, and the devices below it, which it needs as long as it is there.
class TierOnFakeDevices final : public Tier {
 public:
  TierOnFakeDevices(uint64_t capacity, const device::fake::FakeOptions& options) : fake_(options) {
    DeviceTierOptions tier;
    tier.pool = {.capacity_bytes = capacity / options.devices,
                 .chunk_bytes = 4 << 20,
                 .slot_bytes = 64 << 10,
                 .slots = 3};
    tier.poll_interval = std::chrono::microseconds(10);
    auto made = DeviceTier::Create(
        tier, {.driver = fake_.driver(), .host = nullptr, .clock = &SteadyClock::Get()});
    EXPECT_OK(made);
    tier_ = *std::move(made);
  }
  TierKind kind() const override { return tier_->kind(); }
  Result<Extent> Reserve(uint32_t length) override { return tier_->Reserve(length); }
  void Release(const Extent& extent) override { tier_->Release(extent); }
  void Write(const Extent& extent, std::string_view record, std::span<const std::byte> source,
             IoCallback done) override {
    tier_->Write(extent, record, source, std::move(done));
  }
  void Read(const Extent& extent, std::span<std::byte> destination, IoCallback done) override {
    tier_->Read(extent, destination, std::move(done));
  }
  std::span<std::byte> Map(const Extent& extent) override { return tier_->Map(extent); }
  uint32_t max_extent_bytes() const override { return tier_->max_extent_bytes(); }
  TierStats GetStats() const override { return tier_->GetStats(); }

 private:
  device::fake::FakeDevices fake_;
  std::unique_ptr<DeviceTier> tier_;
};

INSTANTIATE_TEST_SUITE_P(
    Device, TierConformance,
    ::testing::Values(TierCase{"DeviceOne",
                               [](uint64_t capacity, const std::string&) -> std::unique_ptr<Tier> {
                                 return std::make_unique<TierOnFakeDevices>(
                                     capacity, device::fake::FakeOptions{.seed = 3});
                               }},
                      TierCase{"DeviceTwo",
                               [](uint64_t capacity, const std::string&) -> std::unique_ptr<Tier> {
                                 return std::make_unique<TierOnFakeDevices>(
                                     capacity, device::fake::FakeOptions{.seed = 4, .devices = 2});
                               }}),
    [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace cairn::cache::conformance
