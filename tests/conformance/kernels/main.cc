// Runs a suite over all backends, a late and an emulated one among them, and counts skipped tests
// by their reason, so that a machine without an instruction set or a device cannot look green.
//
// CAIRN_TEST_DEVICE names a library of devices, such as libcairn_cuda.so: its first device is then
// a backend, too.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "tests/conformance/kernels/emulated/emulated_backend.h"
#include "tests/conformance/kernels/late/late_backend.h"
#include "tests/conformance/kernels/on_device/device_backend.h"

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
  if (const char* const library = std::getenv("CAIRN_TEST_DEVICE"); library != nullptr) {
    const auto backend = cairn::kernels::testing::OpenDeviceBackend(library, 0);
    if (!backend.ok()) {
      std::fprintf(stderr, "CAIRN_TEST_DEVICE=%s: %s\n", library,
                   cairn::Message(backend.status()).c_str());
      return 1;
    }
    cairn::kernels::RegisterBackend(**backend);
  }
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::UnitTest::GetInstance()->listeners().Append(new SkipCounter);
  return RUN_ALL_TESTS();
}
