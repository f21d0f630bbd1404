#pragma once
// How much of this machine's processors other programs take. While that is much, slow answers say
// nothing about the servers under test.

#include <cstdint>

namespace cairn::fault {

// Not thread-safe.
class ForeignLoad {
 public:
  ForeignLoad() { (void)Take(); }
  // The share of all processors' time, 0 to 1, that neither this process nor its children took
  // since the last call, with what a hypervisor took away.
  double Take();

 private:
  struct Seconds {
    double all = 0;   // Of all processors, idle ones too.
    double busy = 0;  // Of these, by anybody.
    double own = 0;   // Of these, by this process and its children.
  };
  static Seconds Read();

  Seconds last_;
};

}  // namespace cairn::fault
