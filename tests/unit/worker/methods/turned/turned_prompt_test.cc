// Prompts that are longer than the context, whose kept blocks are turned back.

#include "services/worker/methods/turned/turned_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <future>

#include "cairn/common/namespace_spec.h"
#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

constexpr size_t kContext = 1024;  // The context of the small model.
constexpr size_t kDropped = kContext / 4;
constexpr size_t kDim = 64;  // The dimensions of a head; all of it is rotated.

// Binary16, without infinities.
double FromHalf(uint16_t h) {
  const double sign = (h & 0x8000) != 0 ? -1 : 1;
  const int exponent = (h >> 10) & 31;
  const double fraction = (h & 0x3ff) / 1024.0;
  return exponent == 0 ? sign * std::ldexp(fraction, -14)
                       : sign * std::ldexp(1 + fraction, exponent - 15);
}

// The slices of one block.
class Slices final : public client::FetchSink {
 public:
  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override {
    std::vector<uint16_t>& to = layers[slice.layer];
    to.resize(data.size() / 2);
    std::memcpy(to.data(), data.data(), data.size());
    return OkStatus();
  }
  void OnBlockFailed(uint32_t, MissReason) override { ADD_FAILURE() << "the block did not come"; }
  std::vector<uint16_t> layers[kLayers];
};

class TurnedPromptTest : public EngineFixture {
 protected:
  static GenerateRequest Long(size_t count, uint32_t max_tokens = 8) {
    GenerateRequest request = Request(count, 1, max_tokens);
    request.drop_oldest = true;
    return request;
  }
  static std::vector<model::TokenId> TokensOf(const GenerateRequest& request) {
    return std::get<TokenPrompt>(request.prompt).ids;
  }
  static std::vector<model::TokenId> Shortened(const GenerateRequest& request) {
    std::vector<model::TokenId> tokens = TokensOf(request);
    tokens.erase(tokens.begin() + kBlockTokens, tokens.begin() + kBlockTokens + kDropped);
    return tokens;
  }
  Slices BlockAt(const Digest& fingerprint, const BlockKey& key) {
    Slices slices;
    auto match = node_.Match(fingerprint, {&key, 1}, {});
    EXPECT_OK(match);
    EXPECT_EQ(match->matched_blocks, 1u) << "the node does not have the block";
    EXPECT_OK(node_.Fetch(match->lease, {}, slices, {}));
    return slices;
  }
};

TEST_F(TurnedPromptTest, WhatTheNodeHasIsTurnedBackAndFoundByTheNextTurn) {
  const auto worker = Worker();
  Run(*worker, Request(900));
  Idle(*worker);
  const GenerateSummary turned = Run(*worker, Long(1100));
  EXPECT_EQ(turned.dropped_tokens, kDropped);
  EXPECT_EQ(turned.prompt_tokens, 1100 - kDropped);
  // 14 blocks were there; of these the first one and nine are kept.
  EXPECT_EQ(turned.fetched_tokens, 640u);
  EXPECT_EQ(turned.turned_tokens, 576u);
  EXPECT_EQ(turned.computed_tokens, 1100 - kDropped - 640);
  Idle(*worker);

  // Another worker finds what was turned, and what was computed over it.
  const auto other = Worker();
  const GenerateSummary again = Run(*other, Long(1100));
  EXPECT_EQ(again.fetched_tokens, 832u);
  ExpectSameAnswer(again, turned);
  EXPECT_EQ(Run(*other, Long(1150)).fetched_tokens, 832u) << "a longer turn";
  Idle(*other);
}

TEST_F(TurnedPromptTest, TheFirstLayerIsThatOfTheShortenedPromptButForRounding) {
  const auto worker = Worker();
  Run(*worker, Request(900));
  Idle(*worker);
  const GenerateRequest request = Long(1100);
  ASSERT_EQ(Run(*worker, request).turned_tokens, 576u);
  // The shortened prompt, computed again.
  GenerateRequest anew = request;
  anew.prompt = TokenPrompt{Shortened(request)};
  ASSERT_EQ(Run(*worker, anew).turned_tokens, 0u);
  Idle(*worker);

  const Digest fingerprint = *worker->GetInfo().fingerprint;
  BlockKeyChain chain(fingerprint);
  const std::vector<BlockKey> own = chain.Keys(TokensOf(request), kBlockTokens);
  const std::vector<BlockKey> plain = chain.Keys(Shortened(request), kBlockTokens);
  bool deeper_differ = false;
  for (const size_t block : {1u, 5u, 9u}) {
    const BlockKey key = Sha256()
                             .Update("turned back by 256 tokens")
                             .Update(own[block + kDropped / kBlockTokens].View())
                             .Finish();
    const Slices got = BlockAt(fingerprint, key);
    const Slices want = BlockAt(fingerprint, plain[block]);
    const auto& k = got.layers[0];
    const auto& k_want = want.layers[0];
    ASSERT_EQ(k.size(), kLayerBytes / 2);
    ASSERT_EQ(k_want.size(), kLayerBytes / 2);
    const size_t plane = k.size() / 2;
    for (size_t row = 0; row < plane / kDim; ++row) {
      for (size_t p = 0; p < kDim / 2; ++p) {
        const size_t a = row * kDim + p, b = a + kDim / 2;
        const double length = std::hypot(FromHalf(k_want[a]), FromHalf(k_want[b]));
        // Half a unit of binary16 before the turn, and one after it, in each channel.
        const double bound = length / 512 + 1e-6;
        ASSERT_NEAR(FromHalf(k[a]), FromHalf(k_want[a]), bound) << "row " << row << " pair " << p;
        ASSERT_NEAR(FromHalf(k[b]), FromHalf(k_want[b]), bound) << "row " << row << " pair " << p;
      }
    }
    EXPECT_TRUE(std::equal(k.begin() + static_cast<std::ptrdiff_t>(plane), k.end(),
                           k_want.begin() + static_cast<std::ptrdiff_t>(plane)))
        << "values have no position";
    deeper_differ = deeper_differ || got.layers[1] != want.layers[1];
  }
  EXPECT_TRUE(deeper_differ) << "they were computed with the dropped tokens in view";
}

TEST_F(TurnedPromptTest, WithoutItsBlocksTheShortenedPromptIsComputedAnew) {
  const GenerateRequest request = Long(1100);
  GenerateRequest shortened = request;
  shortened.prompt = TokenPrompt{Shortened(request)};
  const GenerateSummary want = Run(*WorkerWithoutCache(), shortened);
  ExpectSameAnswer(Run(*WorkerWithoutCache(), request), want);
  const auto worker = Worker();
  const GenerateSummary got = Run(*worker, request);
  EXPECT_EQ(got.turned_tokens + got.fetched_tokens, 0u);
  ExpectSameAnswer(got, want);
  Idle(*worker);
  // The blocks that it pushed are those of the shortened prompt.
  const GenerateSummary warm = Run(*worker, shortened);
  EXPECT_EQ(warm.fetched_tokens, 832u);
  ExpectSameAnswer(warm, want);
}

TEST_F(TurnedPromptTest, OthersGoOnWhileTheNodeIsSilent) {
  WorkerEngine::Options options = Options();
  options.max_running = 2;
  options.spill.match_deadline = std::chrono::seconds(60);
  const auto worker = Worker(options);
  GenerateRequest other = Request(100, 2, 4);
  other.no_cache = true;
  const GenerateSummary want = Run(*worker, other);

  node_.SetFaults(Fault(&Faults::hang, true));
  auto turned = std::async(std::launch::async, [&] { return worker->Generate(Long(1100), {}); });
  node_.WaitForHang();
  const GenerateSummary got = Run(*worker, other);
  ExpectSameAnswer(got, want);
  EXPECT_LT(got.queue_seconds + got.total_seconds, 30) << "the node is given up after 60";
  EXPECT_EQ(turned.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  node_.SetFaults({});
  const auto summary = turned.get();
  ASSERT_OK(summary);
  EXPECT_EQ(summary->turned_tokens, 0u);
}

TEST_F(TurnedPromptTest, APromptThatFitsIsAsItWas) {
  const auto worker = Worker();
  const GenerateSummary want = Run(*worker, Request(900));
  Idle(*worker);
  const GenerateSummary got = Run(*worker, Long(900));
  EXPECT_EQ(got.dropped_tokens, 0u);
  ExpectSameAnswer(got, want);
}

TEST_F(TurnedPromptTest, WhatCannotBeShortenedIsRefused) {
  const auto worker = WorkerWithoutCache();
  const auto refused = [&](const GenerateRequest& request, const std::string& why) {
    EXPECT_THAT(worker->Generate(request, {}),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  refused(Request(1100), "field 'prompt': got 1100 tokens");
  refused(Long(1100, 1000), "field 'max_tokens': got 1000, expected less");
  GenerateRequest scored = Long(1100);
  scored.score_tokens = {1, 2};
  refused(scored, "field 'drop_oldest': got true with a continuation");
  GenerateRequest handed_over = Long(1100);
  handed_over.prefill_only = true;
  refused(handed_over, "field 'drop_oldest': got true with prefill_only");
}

}  // namespace
}  // namespace cairn::worker
