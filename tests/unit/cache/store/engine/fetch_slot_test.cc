#include "services/cache/store/engine/fetch_slot.h"

#include <gtest/gtest.h>

namespace cairn::cache {
namespace {

FetchSlot SlotOf(const std::vector<format::PartRect>& rects) {
  FetchSlot slot;
  slot.state = FetchSlot::State::kReady;
  for (const format::PartRect& rect : rects) slot.parts.emplace_back().rect = rect;
  return slot;
}

TEST(FetchSlotTest, GivesThePartsOfALayerInTheirOrder) {
  FetchSlot slot =
      SlotOf({{0, 1, 2, 3}, {0, 2, 1, 2}, {0, 4, 0, 1}, {1, 4, 2, 3}, {2, 3, 1, 2}, {3, 4, 1, 2}});
  const std::vector<std::vector<format::PartRect>> expected = {
      {{0, 1, 2, 3}, {0, 2, 1, 2}, {0, 4, 0, 1}},
      {{0, 2, 1, 2}, {0, 4, 0, 1}, {1, 4, 2, 3}},
      {{0, 4, 0, 1}, {1, 4, 2, 3}, {2, 3, 1, 2}},
      {{0, 4, 0, 1}, {1, 4, 2, 3}, {3, 4, 1, 2}}};
  for (uint32_t layer = 0; layer < expected.size(); ++layer) {
    std::vector<format::PartRect> found;
    while (const FetchSlot::Part* part = slot.PartOf(layer, found.size())) {
      found.push_back(part->rect);
    }
    EXPECT_TRUE(found == expected[layer]) << layer;
  }
  EXPECT_EQ(slot.PartOf(4, 0), nullptr);
}

TEST(FetchSlotTest, ReadersMayBeginAtAnyLayer) {
  FetchSlot slot = SlotOf({{0, 1, 0, 1}, {1, 2, 0, 1}, {2, 9, 0, 1}});
  ASSERT_NE(slot.PartOf(5, 0), nullptr);
  EXPECT_EQ(slot.PartOf(5, 0)->rect.layer_begin, 2);
  EXPECT_EQ(slot.PartOf(5, 1), nullptr);
}

// A part of all layers next to one for each layer: a layer takes no steps for parts of others.
TEST(FetchSlotTest, ALayerStepsOverItsOwnPartsAlone) {
  constexpr uint16_t kLayers = 2000;
  std::vector<format::PartRect> rects = {{0, kLayers, 0, 1}};
  for (uint16_t layer = 0; layer < kLayers; ++layer) {
    rects.push_back({layer, static_cast<uint16_t>(layer + 1), 1, 2});
  }
  std::sort(rects.begin(), rects.end());
  FetchSlot slot = SlotOf(rects);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    ASSERT_NE(slot.PartOf(layer, 1), nullptr);
    EXPECT_EQ(slot.PartOf(layer, 2), nullptr);
    EXPECT_EQ(slot.begun_end - slot.begun, 2u);
  }
}

}  // namespace
}  // namespace cairn::cache
