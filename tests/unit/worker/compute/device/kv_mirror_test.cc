// Which pages have slots in a device's memory, for passes and for loads at the same time.
#include "services/worker/compute/device/kv_mirror.h"

#include <gtest/gtest.h>

#include <thread>

#include "common/status/matchers.h"
#include "tests/support/fake_device/fake_devices.h"

namespace cairn::worker {
namespace {

using cairn::testing::StatusIs;
using ::testing::HasSubstr;

constexpr KvLayout kKv{.layers = 2, .kv_heads = 1, .head_dim = 64, .block_tokens = 16};

class KvMirrorTest : public ::testing::Test {
 protected:
  std::unique_ptr<KvMirror> Mirror(int64_t slots) {
    auto mirror = KvMirror::Create(fake_.Open(), kKv, slots);
    EXPECT_OK(mirror);
    return *std::move(mirror);
  }
  static std::vector<size_t> Missing(KvMirror& mirror, KvMirror::Slot* slot, int layer) {
    return mirror.TakeMissing({&slot, 1}, layer);
  }

  device::fake::FakeDevices fake_;
};

TEST_F(KvMirrorTest, WhatWasLoadedIsThereForThePassAndOnlyThat) {
  const auto mirror = Mirror(2);
  mirror->EndLoad(mirror->BeginLoad(7), 1, /*good=*/true);
  mirror->EndLoad(mirror->BeginLoad(7), 0, /*good=*/false);
  mirror->BeginPass();
  KvMirror::Slot* const slot = *mirror->Hold(7);
  EXPECT_EQ(Missing(*mirror, slot, 0), std::vector<size_t>{0});
  EXPECT_TRUE(Missing(*mirror, slot, 1).empty());
  EXPECT_TRUE(Missing(*mirror, slot, 0).empty()) << "the pass brings it";
  mirror->EndPass(/*failed=*/true);
  mirror->BeginPass();
  EXPECT_EQ(Missing(*mirror, *mirror->Hold(7), 1), std::vector<size_t>{0});
  mirror->EndPass(/*failed=*/false);
}

TEST_F(KvMirrorTest, LoadsTakeNoSlotOfAPassNorOfOtherLoads) {
  const auto mirror = Mirror(2);
  mirror->BeginPass();
  ASSERT_OK(mirror->Hold(1));
  KvMirror::Slot* const load = mirror->BeginLoad(2);
  ASSERT_NE(load, nullptr);
  EXPECT_EQ(mirror->BeginLoad(3), nullptr);
  KvMirror::Slot* const beside = mirror->BeginLoad(1);
  EXPECT_NE(beside, nullptr) << "the pass's own page";
  mirror->EndLoad(beside, 0, true);
  mirror->EndPass(/*failed=*/false);
  KvMirror::Slot* const later = mirror->BeginLoad(3);
  EXPECT_NE(later, nullptr);
  EXPECT_NE(later, load);
  mirror->EndLoad(later, 0, true);
  mirror->EndLoad(load, 0, true);
}

TEST_F(KvMirrorTest, APassWaitsForLoadsAndNoneBeginsMeanwhile) {
  const auto mirror = Mirror(1);
  KvMirror::Slot* const load = mirror->BeginLoad(1);
  std::thread pass([&] {
    mirror->BeginPass();
    EXPECT_OK(mirror->Hold(2));
    EXPECT_THAT(mirror->Hold(3).status(),
                StatusIs(StatusCode::kResourceExhausted, HasSubstr("more than its 1 pages")));
    mirror->EndPass(/*failed=*/false);
  });
  // The page has a slot, so only a pass that waits keeps others from it.
  while (KvMirror::Slot* const more = mirror->BeginLoad(1)) {
    mirror->EndLoad(more, 0, true);
    std::this_thread::yield();
  }
  mirror->EndLoad(load, 1, true);
  pass.join();
}

}  // namespace
}  // namespace cairn::worker
