// XXH3-64 of runs, on every backend that has it: libxxhash's hash, of any length at any address.

#include <xxhash.h>

#include "tests/conformance/kernels/case.h"

namespace cairn::kernels {
namespace {

using testing::BackendCaseName;
using testing::Guarded;

using HashRunsTest = testing::FamilyTest<&Backend::slices>;

TEST_P(HashRunsTest, AreThoseOfLibxxhash) {
  std::vector<size_t> lengths;
  for (size_t n = 0; n <= 260; ++n) lengths.push_back(n);
  // Around a stripe of 64, a block of 1024 and two blocks.
  for (const size_t border : {320, 1024, 1088, 2048, 3072, 4224, 10240}) {
    for (size_t n = border - 2; n <= border + 2; ++n) lengths.push_back(n);
  }
  while (lengths.size() < 900) lengths.push_back(241 + rng()() % 1500);
  const auto count = static_cast<int64_t>(lengths.size());
  Guarded<uint64_t> hashes(here(), count);
  Guarded<uint32_t> faults(here(), count);
  std::vector<HashRun> runs;
  std::vector<uint64_t> want;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const size_t skew = i % 17;
    std::vector<std::byte> bytes(lengths[i] + skew);
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng()());
    want.push_back(XXH3_64bits(bytes.data() + skew, lengths[i]));
    runs.push_back({here().In(bytes) + skew, lengths[i], hashes.get() + i, faults.get() + i,
                    i % 10 == 3 ? want[i] + 1 : want[i]});
  }
  here().Run(&SliceKernels::hash_runs, {runs.data(), count});
  EXPECT_EQ(hashes.Read(), want);
  const std::vector<uint32_t> told = faults.Read();
  for (size_t i = 0; i < lengths.size(); ++i) {
    ASSERT_EQ(told[i], i % 10 == 3 ? kHashFault : 0u) << lengths[i] << " bytes";
  }
}

INSTANTIATE_TEST_SUITE_P(All, HashRunsTest, ::testing::ValuesIn(testing::BackendNames()),
                         BackendCaseName);

}  // namespace
}  // namespace cairn::kernels
