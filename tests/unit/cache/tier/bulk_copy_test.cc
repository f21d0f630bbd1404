#include "services/cache/tier/bulk_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace cairn::cache {
namespace {

TEST(BulkCopyTest, CopiesExactlyAtEveryAlignmentAndSize) {
  SCOPED_TRACE(std::string(BulkCopyKind()));
  const size_t sizes[] = {0,     1,     63,    64,     4096,   65535,  65536,
                          65537, 65599, 65791, 131071, 131072, 1400000};
  std::mt19937_64 rng(1);
  std::vector<unsigned char> source(1400000 + 256);
  for (auto& b : source) b = static_cast<unsigned char>(rng());
  std::vector<unsigned char> destination(source.size() + 256);
  for (size_t size : sizes) {
    for (size_t to : {0, 1, 31, 32, 63, 64}) {
      for (size_t from : {0, 1, 33}) {
        std::fill(destination.begin(), destination.end(), 0xAB);
        BulkCopy(destination.data() + 64 + to, source.data() + from, size);
        ASSERT_EQ(std::memcmp(destination.data() + 64 + to, source.data() + from, size), 0)
            << size << " " << to << " " << from;
        for (size_t guard = 0; guard < 64; ++guard) {
          ASSERT_EQ(destination[to + guard], 0xAB) << size << " " << to << " " << from;
          ASSERT_EQ(destination[64 + to + size + guard], 0xAB) << size << " " << to << " " << from;
        }
      }
    }
  }
}

}  // namespace
}  // namespace cairn::cache
