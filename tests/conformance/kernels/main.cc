// Counts skipped implementations, so that a machine without an instruction set cannot look green.

#include <gtest/gtest.h>

#include <cstdio>

#include "cairn/kernels/isa.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  std::printf("best instruction set: %s; %d of %d tests skipped\n",
              std::string(cairn::kernels::Name(cairn::kernels::BestIsa())).c_str(),
              ::testing::UnitTest::GetInstance()->skipped_test_count(),
              ::testing::UnitTest::GetInstance()->test_to_run_count());
  return result;
}
