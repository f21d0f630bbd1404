#pragma once
// What the program wrote on stderr while this existed. Lines are written by a thread of the log's:
// those of before are written first, or they would be taken for lines of the test's own.

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "common/log/log.h"

namespace cairn::testing {

class CapturedLog {
 public:
  CapturedLog() {
    WriteLines();
    ::testing::internal::CaptureStderr();
  }
  ~CapturedLog() {
    if (!taken_) Take();
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  // Once.
  std::string Take() {
    WriteLines();
    taken_ = true;
    return ::testing::internal::GetCapturedStderr();
  }

 private:
  static void WriteLines() { EXPECT_TRUE(log::Flush(std::chrono::seconds(60))); }

  bool taken_ = false;
};

}  // namespace cairn::testing
