#include "services/worker/compute/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace cairn::worker {
namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();

std::map<int32_t, int> Count(const SamplingOptions& options, const std::vector<float>& logits,
                             int draws) {
  Sampler sampler(options);
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) counts[sampler.Sample(logits).value()]++;
  return counts;
}

TEST(SamplerTest, GreedyTakesTheLowestIdAmongEquals) {
  Sampler sampler({});
  EXPECT_EQ(sampler.Sample(std::vector<float>{1, 3, 2, 3}).value(), 1);
  EXPECT_EQ(sampler.Sample(std::vector<float>{kNan, -kInf, -5}).value(), 2);
}

TEST(SamplerTest, FollowsTheSoftmax) {
  const auto counts = Count({.temperature = 1.0f, .seed = 3},
                            {std::log(1.0f), std::log(2.0f), std::log(5.0f)}, 8000);
  EXPECT_NEAR(counts.at(0), 1000, 150);
  EXPECT_NEAR(counts.at(1), 2000, 150);
  EXPECT_NEAR(counts.at(2), 5000, 150);
}

TEST(SamplerTest, TemperatureSharpensAndFlattens) {
  const std::vector<float> logits = {0.0f, 1.0f};
  EXPECT_LT(Count({.temperature = 0.1f, .seed = 1}, logits, 1000)[0], 10);
  EXPECT_NEAR(Count({.temperature = 100.0f, .seed = 1}, logits, 2000)[0], 1000, 120);
}

TEST(SamplerTest, TopKKeepsTheMostLikely) {
  const auto counts = Count({.temperature = 1.0f, .top_k = 2, .seed = 1}, {1, 5, 4.5, 2}, 2000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_TRUE(counts.contains(1) && counts.contains(2));
}

TEST(SamplerTest, TopPKeepsTheSmallestSetThatReachesIt) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f),
                                     std::log(0.05f)};
  EXPECT_EQ(Count({.temperature = 1.0f, .top_p = 0.4f, .seed = 1}, logits, 500).size(), 1u);
  EXPECT_EQ(Count({.temperature = 1.0f, .top_p = 0.7f, .seed = 1}, logits, 500).size(), 2u);
  EXPECT_EQ(Count({.temperature = 1.0f, .top_p = 0.9f, .seed = 1}, logits, 500).size(), 3u);
}

TEST(SamplerTest, ASeedGivesOneSequenceOfTokens) {
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 17) * 0.3f;
  const SamplingOptions options{.temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .seed = 42};
  Sampler a(options), b(options), c({.temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .seed = 43});
  int equal = 0;
  for (int i = 0; i < 50; ++i) {
    const int32_t token = a.Sample(logits).value();
    EXPECT_EQ(token, b.Sample(logits).value());
    equal += token == c.Sample(logits).value() ? 1 : 0;
  }
  EXPECT_LT(equal, 25);
}

TEST(SamplerTest, InfiniteLogitsWin) {
  Sampler sampler({.temperature = 1.0f, .seed = 9});
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(sampler.Sample(std::vector<float>{1, kInf, kNan, -kInf}).value(), 1);
  }
}

TEST(SamplerTest, NoUsableLogitsIsAnError) {
  Sampler sampler({});
  EXPECT_EQ(sampler.Sample({}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(sampler.Sample(std::vector<float>{kNan, kNan}).status().code(), StatusCode::kInternal);
}

TEST(SamplerTest, ValidationNamesTheField) {
  const auto field = [](const SamplingOptions& options) { return Message(Validate(options)); };
  EXPECT_TRUE(Validate({}).ok());
  EXPECT_NE(field({.temperature = -1.0f}).find("temperature"), std::string::npos);
  EXPECT_NE(field({.temperature = kNan}).find("temperature"), std::string::npos);
  EXPECT_NE(field({.top_k = -1}).find("top_k"), std::string::npos);
  EXPECT_NE(field({.top_p = 0.0f}).find("top_p"), std::string::npos);
  EXPECT_NE(field({.top_p = kNan}).find("top_p"), std::string::npos);
}

}  // namespace
}  // namespace cairn::worker
