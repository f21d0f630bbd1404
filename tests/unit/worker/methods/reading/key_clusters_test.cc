#include "services/worker/methods/reading/key_clusters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace cairn::worker {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int64_t kDim = 64;

// Keys of a length along an axis each.
std::vector<float> Keys(std::initializer_list<std::pair<int, float>> axes) {
  std::vector<float> keys;
  for (const auto& [axis, length] : axes) {
    keys.resize(keys.size() + kDim);
    keys[keys.size() - kDim + static_cast<size_t>(axis)] = length;
  }
  return keys;
}

KeyClusters Cluster(const std::vector<float>& keys, int64_t count) {
  return ClusterKeys(keys, kDim, count, kernels::BestCpuBackend());
}

TEST(KeyClustersTest, KeysOfOneDirectionAreTogetherWhateverTheirLength) {
  const KeyClusters got = Cluster(Keys({{3, 1}, {3, 8}, {7, 2}, {3, 2}, {7, 0.5f}, {7, 4}}), 2);
  // The first centres are rows 0 and 3, of one direction. The second one has no rows at first, and
  // keeps its centre.
  EXPECT_THAT(got.of_row, ElementsAre(1, 1, 0, 1, 0, 0));
  const KeyClusters apart = Cluster(Keys({{3, 1}, {3, 8}, {7, 2}, {7, 0.5f}}), 2);
  EXPECT_THAT(apart.of_row, ElementsAre(0, 0, 1, 1));
  // Means are of the keys as they are.
  EXPECT_EQ(apart.means[3], 4.5f);
  EXPECT_EQ(apart.means[kDim + 7], 1.25f);
}

TEST(KeyClustersTest, OneClusterHasAllKeysAndAsManyAsKeysHasOneEach) {
  const std::vector<float> keys = Keys({{0, 1}, {1, 1}, {2, 1}, {3, 1}});
  EXPECT_THAT(Cluster(keys, 1).of_row, Each(0));
  EXPECT_THAT(Cluster(keys, 4).of_row, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(Cluster(keys, 1).means[2], 0.25f);
}

TEST(KeyClustersTest, KeysOfLengthZeroHaveAClusterToo) {
  const KeyClusters got = Cluster(std::vector<float>(5 * kDim), 2);
  EXPECT_THAT(got.of_row, Each(0));
  EXPECT_THAT(got.means, Each(0.0f));
}

}  // namespace
}  // namespace cairn::worker
