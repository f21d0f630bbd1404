#include "tools/cairn/doctor/probe.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/device/driver.h"
#include "common/link/nccl/library.h"
#include "tools/cairn/output/units.h"
#include "tools/cairn/process/programs.h"

namespace cairn::cli {
namespace {

std::string ReadWhole(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

int UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

// Our cgroup's directory: version 2, or the mount's root in a container that hides the path.
std::string CgroupDirectory() {
  std::istringstream lines(ReadWhole("/proc/self/cgroup"));
  std::string line;
  while (std::getline(lines, line)) {
    if (!line.starts_with("0::")) continue;
    const std::string path = "/sys/fs/cgroup" + line.substr(3);
    if (std::filesystem::exists(path + "/memory.max")) return path;
  }
  return "/sys/fs/cgroup";
}

std::optional<double> CpuQuota() {
  std::istringstream v2(ReadWhole(CgroupDirectory() + "/cpu.max"));
  double quota = 0;
  double period = 0;
  if (v2 >> quota >> period && quota > 0 && period > 0) return quota / period;
  std::istringstream v1_quota(ReadWhole("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"));
  std::istringstream v1_period(ReadWhole("/sys/fs/cgroup/cpu/cpu.cfs_period_us"));
  if (v1_quota >> quota && v1_period >> period && quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

std::optional<uint64_t> FreeBytes(const std::string& directory) {
  struct statvfs fs {};
  if (statvfs(directory.c_str(), &fs) != 0) return std::nullopt;
  return static_cast<uint64_t>(fs.f_bavail) * fs.f_frsize;
}

std::string TryDirectIo(const std::string& directory) {
  const std::string path = fmt::format("{}/.cairn-doctor-{}", directory, getpid());
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
  if (fd < 0) {
    const std::string error = std::strerror(errno);
    unlink(path.c_str());
    return error;
  }
  std::string error;
  void* page = std::aligned_alloc(4096, 4096);
  std::memset(page, 0x5a, 4096);
  if (pwrite(fd, page, 4096, 0) != 4096 || pread(fd, page, 4096, 0) != 4096) {
    error = std::strerror(errno);
  }
  std::free(page);
  close(fd);
  unlink(path.c_str());
  return error;
}

int TryIoUring() {
  std::array<uint32_t, 30> params{};  // struct io_uring_params: 120 bytes.
  const long fd = syscall(SYS_io_uring_setup, 1, params.data());
  if (fd < 0) return errno;
  close(static_cast<int>(fd));
  return 0;
}

bool TryMemfd() {
  const int fd = memfd_create("cairn-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return false;
  const bool works = ftruncate(fd, 4096) == 0;
  close(fd);
  return works;
}

Check Cuda() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return CheckCuda(std::nullopt, 0);
  using Call = int (*)(int*);
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto version = reinterpret_cast<Call>(dlsym(driver, "cuDriverGetVersion"));
  const auto count = reinterpret_cast<Call>(dlsym(driver, "cuDeviceGetCount"));
  int number = 0;
  int devices = 0;
  if (version != nullptr) version(&number);
  if (init == nullptr || init(0) != 0 || count == nullptr || count(&devices) != 0) devices = 0;
  // The driver stays loaded: unloading it is not supported.
  return CheckCuda(number, devices);
}

Check DeviceTier() {
  void* const cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto driver = device::Driver::Probe("");
  std::vector<std::string> devices;
  if (driver.ok()) {
    for (const device::DeviceInfo& info : (*driver)->devices()) {
      devices.push_back(fmt::format("{} ({}, {}{}{})", info.name, info.uuid,
                                    HumanBytes(info.memory_bytes),
                                    info.exports ? "" : ", exports no memory",
                                    info.registers ? "" : ", pins no memory of others"));
    }
  }
  return CheckDeviceTier(driver.status(), cuda != nullptr, devices);
}

Check Links() {
  const auto library = link::nccl::Library::Probe("");
  const bool has_driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr;
  if (!library.ok()) return CheckLinks(library.status(), has_driver);
  return CheckLinks(link::nccl::VersionText((*library)->version()), has_driver);
}

}  // namespace

std::vector<Check> ProbeMachine(const ProbeOptions& options) {
  std::vector<Check> checks;
  checks.push_back(CheckCpu(ParseCpuInfo(ReadWhole("/proc/cpuinfo"))));
  checks.push_back(CheckCpuCount(UsableCpus(), CpuQuota()));
  checks.push_back(CheckMemory(ReadMachineMemory()));

  const std::string meminfo = ReadWhole("/proc/meminfo");
  checks.push_back(
      CheckHugePages(MemInfoValue(meminfo, "HugePages_Free").value_or(0),
                     MemInfoValue(meminfo, "Hugepagesize").value_or(2 << 20),
                     BracketedChoice(ReadWhole("/sys/kernel/mm/transparent_hugepage/enabled"))));
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  checks.push_back(CheckMemlock(
      limit.rlim_cur == RLIM_INFINITY ? std::nullopt : std::optional<uint64_t>(limit.rlim_cur)));
  getrlimit(RLIMIT_NOFILE, &limit);
  checks.push_back(CheckOpenFiles(limit.rlim_cur));
  checks.push_back(CheckShm(FreeBytes("/dev/shm"), TryMemfd()));

  const bool writable = access(options.directory.c_str(), W_OK | X_OK) == 0;
  checks.push_back(
      CheckDiskSpace(options.directory, writable ? FreeBytes(options.directory) : std::nullopt));
  if (writable) checks.push_back(CheckDirectIo(options.directory, TryDirectIo(options.directory)));
  checks.push_back(CheckIoUring(TryIoUring(), ReadWhole("/proc/sys/kernel/io_uring_disabled")));

  std::ifstream model(options.model_path, std::ios::binary);
  std::optional<std::string> head;
  std::error_code error;
  uint64_t bytes = 0;
  if (model) {
    head.emplace(4, '\0');
    model.read(head->data(), 4);
    bytes = std::filesystem::file_size(options.model_path, error);
    if (error) bytes = 0;
  }
  checks.push_back(CheckModel(options.model_path, head, bytes));
  for (const char* name : {"cairn-cache", "cairn-worker", "cairn-router"}) {
    const std::string path = SiblingProgram(name);
    checks.push_back(CheckProgram(name, path, access(path.c_str(), X_OK) == 0));
  }
  checks.push_back(Cuda());
  checks.push_back(DeviceTier());
  checks.push_back(Links());
  return checks;
}

std::string MachineName() {
  utsname kernel{};
  uname(&kernel);
  return fmt::format("{}, {} CPUs, {} RAM, {} {}", ParseCpuInfo(ReadWhole("/proc/cpuinfo")).model,
                     UsableCpus(), HumanBytes(ReadMachineMemory().machine_total), kernel.sysname,
                     kernel.release);
}

}  // namespace cairn::cli
