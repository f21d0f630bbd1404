#include "tools/cairn/fidelity/stored_kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "cairn/client/testing/in_memory_cache_client.h"
#include "common/keys/segment_keys.h"
#include "common/status/matchers.h"
#include "services/worker/methods/selections/selected_rows.h"
#include "services/worker/session/push_queue.h"
#include "services/worker/session/worker_namespace.h"

namespace cairn::cli {
namespace {

constexpr worker::KvLayout kKv{.layers = 2, .kv_heads = 2, .head_dim = 64, .block_tokens = 16};
constexpr size_t kBlocks = 3;

class StoredKvTest : public ::testing::Test {
 protected:
  StoredKvTest() : tokens_(kBlocks * 16), pages_(kBlocks * kKv.page_bytes()) {
    std::iota(tokens_.begin(), tokens_.end(), 100);
    std::mt19937 random(1);
    // Halves from 1 to 2, with either sign.
    for (size_t i = 0; i < pages_.size(); i += 2) {
      const auto half = static_cast<uint16_t>(0x3c00 | (random() & 0x83ff));
      std::memcpy(pages_.data() + i, &half, sizeof(half));
    }
  }

  // Pushes the first `blocks` of the pages by this recipe; a reader of its namespace. Where the
  // recipe selects, `mask` says which tokens of a block a head keeps, and the blocks are a segment.
  std::unique_ptr<StoredKvReader> Store(
      const std::string& recipe, size_t blocks = kBlocks,
      const std::function<uint64_t(size_t block, int layer, int head)>& mask = nullptr) {
    worker::NamespaceInputs inputs;
    inputs.model = "toy";
    inputs.kv = kKv;
    inputs.numerics = "toy-1";
    inputs.recipe = recipe;
    const auto ns = worker::WorkerNamespace(inputs);
    EXPECT_OK(ns);
    const auto codec = worker::KvCodec::Create(*ns, kKv, SteadyClock::Get());
    EXPECT_OK(codec);
    EXPECT_OK(client_.OpenNamespace(ns->spec));
    const Digest fingerprint = ns->fingerprint;
    std::vector<BlockKey> keys = BlockKeyChain(fingerprint).Keys(tokens_, 16);
    if (mask != nullptr) {
      const BlockKey end = keys.back();
      keys = SegmentKeys(fingerprint).Keys(std::nullopt, end, static_cast<uint32_t>(keys.size()));
    }
    std::vector<worker::ComputedBlock> computed(blocks);
    for (size_t b = 0; b < blocks; ++b) {
      computed[b].key = keys[b];
      if (b > 0) computed[b].parent = keys[b - 1];
      computed[b].first_position = b * 16;
      computed[b].page = std::span(pages_).subspan(b * kKv.page_bytes(), kKv.page_bytes());
      if (mask == nullptr) continue;
      worker::SelectedRows rows{.kv = kKv, .masks = {}};
      for (int l = 0; l < kKv.layers; ++l) {
        for (int h = 0; h < kKv.kv_heads; ++h) {
          rows.masks.push_back(mask(b, l, h));
          rows.bytes += static_cast<uint64_t>(std::popcount(rows.masks.back())) * 64 * 2 * 2;
        }
      }
      computed[b].selected = std::make_shared<const worker::SelectedSlices>(std::move(rows));
    }
    worker::PushQueue push(client_, ns->spec.layout, SteadyClock::Get(), {});
    push.Enqueue(fingerprint, **codec, std::move(computed));
    while (push.RunOnce()) {
    }
    auto reader = StoredKvReader::Create(client_, ns->spec);
    EXPECT_OK(reader);
    return *std::move(reader);
  }

  std::vector<int32_t> tokens_;
  std::vector<std::byte> pages_;
  client::testing::InMemoryCacheClient client_;
};

TEST_F(StoredKvTest, RawIsWhatWasPushed) {
  const auto stored = Store("raw")->Read(tokens_);
  ASSERT_OK(stored);
  EXPECT_EQ(stored->pages, pages_);
  EXPECT_GT(stored->bytes, pages_.size());  // Headers.
  EXPECT_EQ(stored->codecs, std::set<format::Codec>{format::Codec::kRaw});
  const KvError error = RelativeError(pages_, stored->pages, kKv);
  EXPECT_EQ(error.k, 0);
  EXPECT_EQ(error.v, 0);
}

TEST_F(StoredKvTest, LossyIsSmallerAndNear) {
  const auto stored = Store("int8")->Read(tokens_);
  ASSERT_OK(stored);
  EXPECT_LT(stored->bytes, pages_.size() * 6 / 10);
  const KvError error = RelativeError(pages_, stored->pages, kKv);
  // Steps of 2 / 127 of numbers of 1.5: evenly spread within a step, 2 / 127 / sqrt(12) / 1.5.
  EXPECT_NEAR(error.k, 0.003, 0.0005);
  EXPECT_NEAR(error.v, 0.003, 0.0005);
}

TEST_F(StoredKvTest, KeysAndValuesAreToldApart) {
  std::vector<std::byte> without_values = pages_;
  for (size_t at = 0; at < pages_.size(); at += kKv.layer_bytes()) {
    std::fill_n(without_values.begin() + static_cast<ptrdiff_t>(at + kKv.plane_bytes()),
                kKv.plane_bytes(), std::byte{0});
  }
  const KvError error = RelativeError(pages_, without_values, kKv);
  EXPECT_EQ(error.k, 0);
  EXPECT_EQ(error.v, 1);
}

TEST_F(StoredKvTest, OfASelectionItSaysWhichTokensEachHeadKeeps) {
  // Another mask for each block, layer and head; one head keeps nothing.
  const auto mask = [](size_t block, int layer, int head) {
    return layer == 1 && head == 0 ? 0u
                                   : ((0x8421u << block) & 0xffffu) ^ (head == 1 ? 0x0100u : 0u);
  };
  const auto stored =
      Store("snapkv:keep=0.5+raw", kBlocks, mask)->Read(tokens_, /*with_kept=*/true);
  ASSERT_OK(stored);
  EXPECT_TRUE(stored->pages.empty());
  ASSERT_EQ(stored->kept.size(), 4u);
  for (int l = 0; l < 2; ++l) {
    for (int h = 0; h < 2; ++h) {
      const std::vector<std::byte>& kept = stored->kept[static_cast<size_t>(l * 2 + h)];
      ASSERT_EQ(kept.size(), kBlocks * 2);
      for (size_t b = 0; b < kBlocks; ++b) {
        EXPECT_EQ(static_cast<unsigned>(kept[b * 2]) | static_cast<unsigned>(kept[b * 2 + 1]) << 8,
                  mask(b, l, h))
            << b << ", " << l << ", " << h;
      }
    }
  }
}

TEST_F(StoredKvTest, AContextThatIsNotWholeAtTheNodeIsAnError) {
  EXPECT_THAT(Store("raw", 2)->Read(tokens_),
              testing::StatusIs(StatusCode::kFailedPrecondition, ::testing::HasSubstr("2 of 3")));
}

}  // namespace
}  // namespace cairn::cli
