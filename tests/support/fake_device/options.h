#pragma once
// Options in the text of CAIRN_FAKE_DEVICE, for processes that a test cannot reach otherwise.

#include <string>
#include <vector>

#include "tests/support/fake_device/control.h"

namespace cairn::device::fake {

struct PlannedFailure {
  std::string operation;
  uint64_t after = 0;
  uint64_t times = 1;
  Code code = Code::kOther;
};

struct ParsedOptions {
  FakeOptions options;
  std::vector<PlannedFailure> failures;
  std::string kernels;  // A library.
  std::string error;    // The word that is not understood; "" if all are.
};

// Words with commas between them: seed=N devices=N memory=BYTES granularity=BYTES pinned=BYTES
// rate=BYTES at_once no_driver old_driver no_export no_register no_read_only kernels=PATH
// fail=OPERATION:AFTER:TIMES:CODE, with the code as a word: memory, unsupported, refused, lost,
// other.
ParsedOptions ParseOptions(const std::string& text);

}  // namespace cairn::device::fake
