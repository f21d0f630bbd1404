#pragma once
// Whether what is tested was built with the worker's methods (CAIRN_METHODS). A test of one begins
// with: if (!kBuiltWithMethods) GTEST_SKIP() << kNoMethods;

namespace cairn::testing {

#ifdef CAIRN_WITHOUT_METHODS
inline constexpr bool kBuiltWithMethods = false;
#else
inline constexpr bool kBuiltWithMethods = true;
#endif
inline constexpr char kNoMethods[] = "built without methods (CAIRN_METHODS=OFF)";

}  // namespace cairn::testing
