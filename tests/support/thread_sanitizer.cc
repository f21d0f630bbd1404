// Part of each test program under ThreadSanitizer: races that it sees and that are none.
//
// Debian's abseil is not instrumented. A Status that several threads hold is counted by atomics
// inside of it, so ThreadSanitizer does not see that whoever deletes it comes after the others.

extern "C" const char* __tsan_default_suppressions();

const char* __tsan_default_suppressions() { return "race:absl::*::Status::Unref\n"; }
