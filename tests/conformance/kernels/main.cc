// Runs a suite over all backends, a late and an emulated one among them, and counts skipped tests
// by their reason, so that a machine without an instruction set or a device cannot look green.

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>

#include "tests/conformance/kernels/emulated/emulated_backend.h"
#include "tests/conformance/kernels/late/late_backend.h"

namespace {

// One thread: that of the tests.
class SkipCounter final : public ::testing::EmptyTestEventListener {
 public:
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.skipped()) ++reasons_[result.message()];
  }
  void OnTestProgramEnd(const ::testing::UnitTest& program) override {
    std::printf("%d of %d tests skipped\n", program.skipped_test_count(),
                program.test_to_run_count());
    for (const auto& [reason, count] : reasons_) std::printf("%6d  %s\n", count, reason.c_str());
  }

 private:
  std::map<std::string, int> reasons_;
};

}  // namespace

int main(int argc, char** argv) {
  cairn::kernels::RegisterBackend(cairn::kernels::testing::LateBackend());
  cairn::kernels::RegisterBackend(cairn::kernels::testing::EmulatedBackend());
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::UnitTest::GetInstance()->listeners().Append(new SkipCounter);
  return RUN_ALL_TESTS();
}
