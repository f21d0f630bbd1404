#pragma once
// The checks of `cairn doctor`. Each check is a pure function from what the machine says about
// itself to a verdict, so that every verdict can be tested on any machine; probe.h asks the
// machine.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"
#include "common/memory/machine_memory.h"

namespace cairn::cli {

enum class Verdict { kOk, kWarn, kFail };
std::string_view Name(Verdict verdict);  // "ok", "warn", "fail"

struct Check {
  std::string name;
  Verdict verdict = Verdict::kOk;
  std::string found = {};  // The thing that was found.
  std::string fix = {};    // The advice; empty when ok.
};

struct CpuInfo {
  std::string model = "unknown";
  std::set<std::string, std::less<>> flags;
};
// /proc/cpuinfo; the first processor speaks for all.
CpuInfo ParseCpuInfo(std::string_view text);
// Value of a "Name:   123 kB" line of /proc/meminfo in bytes (or the bare number without "kB").
std::optional<uint64_t> MemInfoValue(std::string_view text, std::string_view name);
// The bracketed choice of /sys/kernel/mm/transparent_hugepage/enabled: "always [madvise] never".
std::string BracketedChoice(std::string_view text);

Check CheckCpu(const CpuInfo& cpu);
// `usable`: CPUs that we may run on; `quota`: CPUs' worth of time that the cgroup grants, if
// limited.
Check CheckCpuCount(int usable, std::optional<double> quota);

Check CheckMemory(const MachineMemory& memory);

Check CheckHugePages(uint64_t free_pages, uint64_t page_bytes, std::string_view transparent);
// nullopt: unlimited.
Check CheckMemlock(std::optional<uint64_t> limit);
Check CheckOpenFiles(uint64_t limit);
// `error`: errno text of the first O_DIRECT step that failed; empty: it worked.
Check CheckDirectIo(std::string_view directory, std::string_view error);
Check CheckDiskSpace(std::string_view directory, std::optional<uint64_t> free_bytes);
// `error`: errno of io_uring_setup, 0: it worked.
Check CheckIoUring(int error, std::string_view disabled_sysctl);
Check CheckShm(std::optional<uint64_t> free_bytes, bool memfd_works);
// `head`: first 4 bytes of the file; nullopt: it cannot be read.
Check CheckModel(std::string_view path, std::optional<std::string> head, uint64_t bytes);
// `driver_version`: as cuDriverGetVersion gives it (12040); nullopt: no driver.
Check CheckCuda(std::optional<int> driver_version, int devices);
// The check of a cache node's device tier. `library`: OK, or why libcairn_cuda.so cannot be
// used. `has_driver`: as CheckCuda's. `devices`: one text for each GPU.
Check CheckDeviceTier(const Status& library, bool has_driver,
                      const std::vector<std::string>& devices);
// The check of moves of blocks between GPUs of members. `nccl`: its version, or why it cannot be
// used.
Check CheckLinks(const Result<std::string>& nccl, bool has_driver);
Check CheckProgram(std::string_view name, std::string_view path, bool executable);

// The worst verdict of all.
Verdict Worst(const std::vector<Check>& checks);

}  // namespace cairn::cli
