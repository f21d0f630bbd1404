#pragma once
// The actions of the fake NCCL on demand, its counts and reports. Thread-safe.
//
// Options are words with commas between them, from CAIRN_FAKE_NCCL or from control.h:
//
//   fail=CALL:N     call number N of ncclCALL, from 0 on, fails: fail=Send:2
//   hang=CALL:N     it never returns: hang=CommAbort:0
//   die=CALL:N      the process is killed in it
//   version=NUMBER  what ncclGetVersion says: 22902
//   no_windows      there are no windows, as without symmetric memory
//   no_puts         puts are refused, though there are windows
//   remote_error    a peer's death is told; without it nobody hears of it, as with the real one
//
// CALL may also be `work`: the Nth piece of work that has begun to move bytes.

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "common/link/nccl/functions.h"

namespace cairn::link::fake {

class Actions {
 public:
  static Actions& Get();

  void Reset(const std::string& options);
  // Counts a call of `name`. It may not return. Else the answer that was asked for.
  nccl::Answer Enter(const std::string& name);
  // The same for a piece of work that moves bytes. False: it never moves any more.
  bool Work();
  void Report(const std::string& text);
  std::string TakeReports();
  uint64_t Calls(const std::string& name);

  int32_t version();
  bool Has(const std::string& word);

 private:
  Actions();
  std::string ActionOf(const std::string& name);

  std::mutex mu_;
  std::map<std::pair<std::string, uint64_t>, std::string> planned_;  // By name and number.
  std::map<std::string, uint64_t> words_;
  std::map<std::string, uint64_t> calls_;
  std::string reports_;
};

}  // namespace cairn::link::fake
