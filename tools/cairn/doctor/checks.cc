#include "tools/cairn/doctor/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "tools/cairn/output/units.h"

namespace cairn::cli {
namespace {

constexpr uint64_t kMiB = 1ULL << 20;
constexpr uint64_t kGiB = 1ULL << 30;
// The demo: a node with 512 MiB, two workers and one more at a time of about 600 MiB each.
constexpr uint64_t kDemoMemory = 3 * kGiB;
constexpr uint64_t kLeastMemory = 1 * kGiB;
constexpr uint64_t kDemoDisk = 1 * kGiB;

std::string_view Trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t' || s.front() == '\n')) {
    s.remove_prefix(1);
  }
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\n')) {
    s.remove_suffix(1);
  }
  return s;
}

template <typename Visit>
void ForEachLine(std::string_view text, Visit visit) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::optional<uint64_t> ParseNumber(std::string_view text) {
  text = Trim(text);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

}  // namespace

std::string_view Name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarn:
      return "warn";
    case Verdict::kFail:
      break;
  }
  return "fail";
}

CpuInfo ParseCpuInfo(std::string_view text) {
  CpuInfo cpu;
  bool first = true;
  ForEachLine(text, [&](std::string_view line) {
    if (Trim(line).empty()) first = false;
    const size_t colon = line.find(':');
    if (!first || colon == line.npos) return;
    const std::string_view key = Trim(line.substr(0, colon));
    std::string_view value = Trim(line.substr(colon + 1));
    if (key == "model name") cpu.model = std::string(value);
    if (key != "flags" && key != "Features") return;
    while (!value.empty()) {
      const size_t end = std::min(value.find(' '), value.size());
      if (end > 0) cpu.flags.emplace(value.substr(0, end));
      value.remove_prefix(std::min(end + 1, value.size()));
    }
  });
  return cpu;
}

std::optional<uint64_t> MemInfoValue(std::string_view text, std::string_view name) {
  std::optional<uint64_t> found;
  ForEachLine(text, [&](std::string_view line) {
    const size_t colon = line.find(':');
    if (found || colon == line.npos || line.substr(0, colon) != name) return;
    found = ParseNumber(line.substr(colon + 1));
    if (found && line.ends_with("kB")) *found *= 1024;
  });
  return found;
}

std::string BracketedChoice(std::string_view text) {
  const size_t open = text.find('[');
  const size_t close = text.find(']');
  if (open == text.npos || close == text.npos || close < open) return "";
  return std::string(text.substr(open + 1, close - open - 1));
}

Check CheckCpu(const CpuInfo& cpu) {
  const auto has = [&](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(),
                       [&](const char* n) { return cpu.flags.contains(n); });
  };
  Check check{.name = "cpu", .found = cpu.model};
  if (has({"asimd"})) {  // The kernel's name for NEON on aarch64.
    check.found += ", NEON";
    return check;
  }
  const bool avx2 = has({"avx2", "fma", "f16c"});
  const bool avx512 = avx2 && has({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"});
  if (!avx2) {
    check.verdict = Verdict::kWarn;
    check.found += ", no AVX2";
    check.fix =
        "the portable kernels work, but they are several times slower; use a CPU (or VM type) with "
        "AVX2";
    return check;
  }
  check.found += ", AVX2";
  if (avx512) check.found += ", AVX-512";
  if (avx512 && has({"avx512_bf16"})) check.found += ", BF16";
  if (avx512 && has({"amx_tile", "amx_bf16"})) check.found += ", AMX";
  return check;
}

Check CheckCpuCount(int usable, std::optional<double> quota) {
  Check check{.name = "cpus", .found = fmt::format("{} usable", usable)};
  if (quota) check.found += fmt::format(", cgroup allows {:.1f}", *quota);
  if (usable < 2 || (quota && *quota < 1.95)) {
    check.verdict = Verdict::kWarn;
    check.fix = "give the machine or container 2 CPUs; with fewer everything works, but slower";
  } else if (quota && *quota < usable - 0.05) {
    check.verdict = Verdict::kWarn;
    check.fix =
        fmt::format("run workers with --threads {}: more threads than granted CPUs are throttled",
                    std::max(1, static_cast<int>(*quota)));
  }
  return check;
}

Check CheckMemory(const MachineMemory& memory) {
  const uint64_t usable = memory.Available();
  // Unknown where /proc cannot be read.
  const auto text = [](uint64_t bytes) {
    return bytes == UINT64_MAX ? std::string("unknown") : HumanBytes(bytes);
  };
  Check check{.name = "memory",
              .found = fmt::format("{} available of {}", text(usable), text(memory.Total()))};
  if (memory.Total() < memory.machine_total) {
    check.found += memory.Total() == memory.group_limit ? ", the limit of the control group"
                                                        : ", those of the NUMA nodes of the cpuset";
  }
  if (usable < kLeastMemory) {
    check.verdict = Verdict::kFail;
    check.fix =
        fmt::format("a model and a small arena need at least {}; free memory or raise the limit",
                    HumanBytes(kLeastMemory));
  } else if (usable < kDemoMemory) {
    check.verdict = Verdict::kWarn;
    check.fix =
        fmt::format("the demo (one node, up to three workers) needs {}", HumanBytes(kDemoMemory));
  }
  return check;
}

Check CheckHugePages(uint64_t free_pages, uint64_t page_bytes, std::string_view transparent) {
  Check check{
      .name = "hugepages",
      .found = fmt::format("{} free of {}, transparent: {}", free_pages, HumanBytes(page_bytes),
                           transparent.empty() ? "unknown" : transparent)};
  if (free_pages == 0) {
    check.verdict = Verdict::kWarn;
    check.fix =
        "optional: `sysctl vm.nr_hugepages=N` (N x page size >= the arena) saves page faults";
  }
  return check;
}

Check CheckMemlock(std::optional<uint64_t> limit) {
  Check check{.name = "memlock", .found = limit ? HumanBytes(*limit) : "unlimited"};
  if (limit && *limit < 64 * kMiB) {
    check.verdict = Verdict::kWarn;
    check.fix =
        "optional, for pinned and registered buffers: `ulimit -l unlimited` or "
        "LimitMEMLOCK=infinity";
  }
  return check;
}

Check CheckOpenFiles(uint64_t limit) {
  Check check{.name = "open files", .found = fmt::format("limit {}", limit)};
  if (limit < 1024) {
    check.verdict = Verdict::kWarn;
    check.fix = "`ulimit -n 4096` or LimitNOFILE=4096: the disk tier keeps its files open";
  }
  return check;
}

Check CheckDirectIo(std::string_view directory, std::string_view error) {
  Check check{.name = "O_DIRECT", .found = fmt::format("works on {}", directory)};
  if (!error.empty()) {
    check.verdict = Verdict::kWarn;
    check.found = fmt::format("{}: {}", directory, error);
    check.fix =
        "the disk tier reads through the page cache there; use ext4 or xfs (tmpfs and overlays may "
        "refuse)";
  }
  return check;
}

Check CheckDiskSpace(std::string_view directory, std::optional<uint64_t> free_bytes) {
  Check check{.name = "disk"};
  if (!free_bytes) {
    check.verdict = Verdict::kFail;
    check.found = fmt::format("{} cannot be used", directory);
    check.fix = "name a directory that exists and is writable with --dir";
    return check;
  }
  check.found = fmt::format("{} free on {}", HumanBytes(*free_bytes), directory);
  if (*free_bytes < kDemoDisk) {
    check.verdict = Verdict::kWarn;
    check.fix = fmt::format("the demo's disk tier needs {}", HumanBytes(kDemoDisk));
  }
  return check;
}

Check CheckIoUring(int error, std::string_view disabled_sysctl) {
  Check check{.name = "io_uring", .found = "allowed"};
  if (error == 0) return check;
  check.verdict = Verdict::kWarn;
  check.found = fmt::format("not usable: {}", std::strerror(error));
  if (error == ENOSYS) {
    check.fix = "optional: Linux 5.6 or later; nothing in this version needs it";
  } else if (!Trim(disabled_sysctl).empty() && Trim(disabled_sysctl) != "0") {
    check.fix = "optional: `sysctl kernel.io_uring_disabled=0`; nothing in this version needs it";
  } else {
    check.fix =
        "optional: a seccomp profile that allows io_uring; nothing in this version needs it";
  }
  return check;
}

Check CheckShm(std::optional<uint64_t> free_bytes, bool memfd_works) {
  Check check{.name = "shared memory",
              .found = fmt::format("memfd {}, /dev/shm {}", memfd_works ? "works" : "refused",
                                   free_bytes ? HumanBytes(*free_bytes) + " free" : "missing")};
  if (!memfd_works) {
    check.verdict = Verdict::kFail;
    check.fix = "the arena is made of memfd files: allow memfd_create in the sandbox";
  }
  return check;
}

Check CheckModel(std::string_view path, std::optional<std::string> head, uint64_t bytes) {
  Check check{.name = "model", .found = fmt::format("{} ({})", path, HumanBytes(bytes))};
  if (!head) {
    check.verdict = Verdict::kWarn;
    check.found = fmt::format("no file at {}", path);
    check.fix =
        "`make demo` fetches it, or run `python3 tools/fetch_model.py`, or name one with --model";
  } else if (*head != "GGUF") {
    check.verdict = Verdict::kFail;
    check.found = fmt::format("{} is not a GGUF file", path);
    check.fix = "delete it and fetch it again, or name another one with --model";
  }
  return check;
}

Check CheckCuda(std::optional<int> driver_version, int devices) {
  Check check{.name = "cuda", .found = "no driver: CPU only (optional)"};
  if (!driver_version) return check;
  check.found = fmt::format("driver for CUDA {}.{}, {} device{}", *driver_version / 1000,
                            *driver_version % 1000 / 10, devices, devices == 1 ? "" : "s");
  if (devices == 0) {
    check.verdict = Verdict::kWarn;
    check.fix = "optional: the driver is there but shows no device; look at nvidia-smi";
  }
  return check;
}

Check CheckDeviceTier(const Status& library, bool has_driver,
                      const std::vector<std::string>& devices) {
  Check check{.name = "device tier"};
  if (!library.ok()) {
    check.found = has_driver ? Message(library) : "no GPU: host and disk only (optional)";
    if (!has_driver) return check;
    check.verdict = Verdict::kWarn;
    check.fix = library.code() == StatusCode::kNotFound
                    ? "optional: build where nvcc is installed, and put libcairn_cuda.so next to "
                      "cairn-cache; docs/operate/gpu.md"
                    : "optional: install a driver that the library accepts; docs/operate/gpu.md";
    return check;
  }
  check.found = fmt::format("{}", fmt::join(devices, "; "));
  if (devices.empty()) {
    check.verdict = Verdict::kWarn;
    check.found = "the driver shows no GPU";
    check.fix = "optional: look at nvidia-smi, and at what the container may see";
  }
  return check;
}

Check CheckLinks(const Result<std::string>& nccl, bool has_driver) {
  Check check{.name = "links"};
  if (nccl.ok()) {
    check.found = "NCCL " + *nccl;
    return check;
  }
  if (!has_driver || nccl.status().code() == StatusCode::kNotFound) {
    check.found = "no NCCL: members of a cluster stream blocks (optional)";
    return check;
  }
  check.verdict = Verdict::kWarn;
  check.found = Message(nccl.status());
  check.fix = "optional: install a newer NCCL, or name one with link.library; docs/operate/gpu.md";
  return check;
}

Check CheckProgram(std::string_view name, std::string_view path, bool executable) {
  Check check{.name = std::string(name), .found = std::string(path)};
  if (!executable) {
    check.verdict = Verdict::kWarn;
    check.found = fmt::format("not in the folder of this program ({})", path);
    check.fix =
        fmt::format("run `make build`, or copy {} there, because other commands start it", name);
  }
  return check;
}

Verdict Worst(const std::vector<Check>& checks) {
  Verdict worst = Verdict::kOk;
  for (const Check& check : checks) worst = std::max(worst, check.verdict);
  return worst;
}

}  // namespace cairn::cli
