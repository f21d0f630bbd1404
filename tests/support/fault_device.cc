#include "tests/support/fault_device.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>

namespace cairn::testing {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPage = 4096;
constexpr size_t kSector = 512;
constexpr char kDirectoryVariable[] = "CAIRN_FAULT_DEVICE_DIRECTORY";
constexpr char kControlVariable[] = "CAIRN_FAULT_DEVICE_CONTROL";

// Held by a sync while it marks what is durable, and by a loss while it looks.
std::mutex g_mu;
// Plain memory: the functions below run before and after all constructors. Empty: nothing is
// watched.
char g_directory[PATH_MAX];
std::atomic<uint32_t> g_own_mode{0};
std::atomic<uint32_t>* g_mode = &g_own_mode;
std::atomic<uint64_t> g_syncs{0};

__attribute__((constructor)) void ReadEnvironment() {
  const char* const directory = std::getenv(kDirectoryVariable);
  const char* const control = std::getenv(kControlVariable);
  if (directory == nullptr || control == nullptr) return;
  const int fd = open(control, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* const memory = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return;
  g_mode = static_cast<std::atomic<uint32_t>*>(memory);
  std::strncpy(g_directory, directory, sizeof(g_directory) - 1);
}

std::string ShadowOf(const std::string& directory) { return directory + ".durable"; }

// The rest of a path below the watched directory.
const char* Below(const char* path) {
  const size_t length = std::strlen(g_directory);
  if (length == 0 || std::strncmp(path, g_directory, length) != 0 || path[length] != '/')
    return nullptr;
  return path + length + 1;
}

bool PathOf(int fd, char* path, size_t size) {
  char link[64];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, path, size - 1);
  path[std::max<ssize_t>(n, 0)] = '\0';
  return n > 0;
}

// Before each operation. False: it fails.
bool Pass(int fd) {
  if (g_directory[0] == '\0' ||
      g_mode->load(std::memory_order_relaxed) == static_cast<uint32_t>(DeviceMode::kNormal))
    return true;
  char path[PATH_MAX];
  if (!PathOf(fd, path, sizeof(path)) || Below(path) == nullptr) return true;
  for (;;) {
    switch (static_cast<DeviceMode>(g_mode->load())) {
      case DeviceMode::kNormal:
        return true;
      case DeviceMode::kHangs:
        usleep(1000);
        break;
      case DeviceMode::kSlow:
        usleep(20000);
        return true;
      case DeviceMode::kFails:
        errno = EIO;
        return false;
    }
  }
}

void Synced(int fd) {
  char path[PATH_MAX];
  if (g_directory[0] == '\0' || !PathOf(fd, path, sizeof(path))) return;
  const int error = errno;
  const std::lock_guard lock(g_mu);
  const char* const name = Below(path);
  std::error_code failure;
  if (name == nullptr || !fs::is_regular_file(path, failure)) {
    errno = error;
    return;
  }
  const fs::path shadow = ShadowOf(g_directory) + "/" + name;
  fs::create_directories(shadow.parent_path(), failure);
  // Aside and renamed: a process that is killed in the middle keeps what was durable before.
  const std::string aside = std::string(g_directory) + ".copy";
  fs::copy_file(path, aside, fs::copy_options::overwrite_existing, failure);
  (void)syscall(SYS_rename, aside.c_str(), shadow.c_str());
  ++g_syncs;
  errno = error;
}

void Renamed(const char* from, const char* to) {
  if (g_directory[0] == '\0') return;
  const std::lock_guard lock(g_mu);
  const char* const old_name = Below(from);
  const char* const new_name = Below(to);
  if (old_name == nullptr || new_name == nullptr) return;
  const int error = errno;
  const std::string shadow = ShadowOf(g_directory);
  // Not by the function that this file replaces.
  (void)syscall(SYS_rename, (shadow + "/" + old_name).c_str(), (shadow + "/" + new_name).c_str());
  errno = error;
}

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::string bytes;
  in.seekg(0, std::ios::end);
  bytes.resize(static_cast<size_t>(std::max<std::streamoff>(in.tellg(), 0)));
  in.seekg(0);
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<size_t>(in.gcount()));
  return bytes;
}

void WriteFile(const std::string& path, const std::string& bytes) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// Some of `now` reached the device since it was `durable`.
std::string Mixed(const std::string& durable, const std::string& now, const PowerLossStyle& style,
                  std::mt19937_64& random) {
  std::string out = durable;
  if (now.size() > durable.size()) {
    const size_t pages = (now.size() - durable.size()) / kPage;
    const size_t more = random() % 4 == 0 ? now.size() - durable.size()
                                          : (pages == 0 ? 0 : random() % (pages + 1)) * kPage;
    out.resize(durable.size() + more, '\0');
  } else if (now.size() < durable.size() && random() % 2 == 0) {
    out.resize(now.size());
  }
  for (size_t at = 0; at < out.size(); at += kPage) {
    const size_t size = std::min(kPage, out.size() - at);
    const size_t have = at < now.size() ? std::min(size, now.size() - at) : 0;
    if (have == 0 || std::memcmp(out.data() + at, now.data() + at, have) == 0) continue;
    const uint64_t choice = random() % 100;
    // Bytes that were appended to a page behind its durable bytes may be torn, not these bytes.
    const size_t first = at < durable.size() && durable.size() - at < size &&
                                 std::memcmp(durable.data() + at, now.data() + at,
                                             std::min(have, durable.size() - at)) == 0
                             ? durable.size() - at
                             : 0;
    if (choice < style.kept) {
      std::memcpy(out.data() + at, now.data() + at, have);
    } else if (choice < style.kept + style.zeroed) {
      if (first < size) std::memset(out.data() + at + first, 0, size - first);
    } else if (choice < style.kept + style.zeroed + style.torn) {
      const size_t sectors = random() % (kPage / kSector) * kSector;
      std::memcpy(out.data() + at, now.data() + at, std::min(have, sectors));
    }
  }
  return out;
}

void LeaveOf(const std::string& directory, const std::string& to, const PowerLossStyle& style,
             std::mt19937_64& random) {
  const std::string shadow = ShadowOf(directory);
  std::vector<std::string> names;
  std::error_code error;
  fs::create_directories(to);
  for (const auto& entry : fs::recursive_directory_iterator(directory, error)) {
    const std::string name = fs::relative(entry.path(), directory).string();
    if (entry.is_directory(error)) fs::create_directories(to + "/" + name);
    if (entry.is_regular_file(error)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const auto now = ReadFile(directory + "/" + name);
    const auto durable = ReadFile(shadow + "/" + name);
    if (!now && !durable) continue;
    // Never synced: its name may be lost as well.
    if (!durable && random() % 4 == 0) continue;
    WriteFile(to + "/" + name,
              Mixed(durable.value_or(""), now.value_or(durable.value_or("")), style, random));
  }
  if (!style.deleted_come_back) return;
  for (const auto& entry : fs::recursive_directory_iterator(shadow, error)) {
    if (!entry.is_regular_file(error)) continue;
    const std::string name = fs::relative(entry.path(), shadow).string();
    if (std::binary_search(names.begin(), names.end(), name) || random() % 2 == 0) continue;
    if (const auto bytes = ReadFile(entry.path().string())) WriteFile(to + "/" + name, *bytes);
  }
}

}  // namespace

FaultDevice::FaultDevice(const std::string& directory) {
  fs::create_directories(directory);
  const std::string real = fs::canonical(directory).string();
  const std::lock_guard lock(g_mu);
  std::strncpy(g_directory, real.c_str(), sizeof(g_directory) - 1);
  g_syncs = 0;
}

FaultDevice::~FaultDevice() {
  Set(DeviceMode::kNormal);
  const std::lock_guard lock(g_mu);
  fs::remove_all(ShadowOf(g_directory));
  g_directory[0] = '\0';
}

void FaultDevice::Set(DeviceMode mode) { g_mode->store(static_cast<uint32_t>(mode)); }

uint64_t FaultDevice::syncs() const { return g_syncs; }

void FaultDevice::Leave(const std::string& to, const PowerLossStyle& style,
                        std::mt19937_64& random) {
  const std::lock_guard lock(g_mu);
  LeaveOf(g_directory, to, style, random);
}

PreloadedDevice::PreloadedDevice(const std::string& library, const std::string& directory)
    : directory_(directory), control_(directory + ".control") {
  fs::create_directories(directory);
  WriteFile(control_, std::string(kPage, '\0'));
  setenv("LD_PRELOAD", library.c_str(), 1);
  setenv(kDirectoryVariable, fs::canonical(directory).c_str(), 1);
  setenv(kControlVariable, control_.c_str(), 1);
}

PreloadedDevice::~PreloadedDevice() {
  for (const char* name : {"LD_PRELOAD", kDirectoryVariable, kControlVariable}) unsetenv(name);
  fs::remove_all(ShadowOf(directory_));
  fs::remove(control_);
}

void PreloadedDevice::Set(DeviceMode mode) {
  std::fstream control(control_, std::ios::in | std::ios::out | std::ios::binary);
  const auto value = static_cast<uint32_t>(mode);
  control.write(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PreloadedDevice::LosePower(const PowerLossStyle& style, std::mt19937_64& random) {
  const std::string left = directory_ + ".left";
  fs::remove_all(left);
  LeaveOf(directory_, left, style, random);
  fs::remove_all(directory_);
  fs::remove_all(ShadowOf(directory_));
  fs::rename(left, directory_);
  // The files that are there after the loss are durable.
  fs::copy(directory_, ShadowOf(directory_), fs::copy_options::recursive);
}

}  // namespace cairn::testing

// These stand before the C library's for the whole program, its shared libraries included.
using cairn::testing::Pass;
using cairn::testing::Real;
using cairn::testing::Renamed;
using cairn::testing::Synced;

extern "C" {

int fdatasync(int fd) {
  static const auto real = Real<int(int)>("fdatasync");
  if (!Pass(fd)) return -1;
  const int result = real(fd);
  if (result == 0) Synced(fd);
  return result;
}

int fsync(int fd) {
  static const auto real = Real<int(int)>("fsync");
  if (!Pass(fd)) return -1;
  const int result = real(fd);
  if (result == 0) Synced(fd);
  return result;
}

int rename(const char* from, const char* to) noexcept {
  static const auto real = Real<int(const char*, const char*)>("rename");
  const int result = real(from, to);
  if (result == 0) Renamed(from, to);
  return result;
}

ssize_t write(int fd, const void* bytes, size_t size) {
  static const auto real = Real<ssize_t(int, const void*, size_t)>("write");
  return Pass(fd) ? real(fd, bytes, size) : -1;
}

ssize_t pread(int fd, void* bytes, size_t size, off_t offset) {
  static const auto real = Real<ssize_t(int, void*, size_t, off_t)>("pread");
  return Pass(fd) ? real(fd, bytes, size, offset) : -1;
}

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  static const auto real = Real<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return Pass(fd) ? real(fd, bytes, size, offset) : -1;
}

ssize_t preadv(int fd, const iovec* iov, int count, off_t offset) {
  static const auto real = Real<ssize_t(int, const iovec*, int, off_t)>("preadv");
  return Pass(fd) ? real(fd, iov, count, offset) : -1;
}

ssize_t pwritev(int fd, const iovec* iov, int count, off_t offset) {
  static const auto real = Real<ssize_t(int, const iovec*, int, off_t)>("pwritev");
  return Pass(fd) ? real(fd, iov, count, offset) : -1;
}

// The names that large-file builds use.
ssize_t pread64(int fd, void* bytes, size_t size, off_t offset) {
  return pread(fd, bytes, size, offset);
}
ssize_t pwrite64(int fd, const void* bytes, size_t size, off_t offset) {
  return pwrite(fd, bytes, size, offset);
}
ssize_t preadv64(int fd, const iovec* iov, int count, off_t offset) {
  return preadv(fd, iov, count, offset);
}
ssize_t pwritev64(int fd, const iovec* iov, int count, off_t offset) {
  return pwritev(fd, iov, count, offset);
}

}  // extern "C"
