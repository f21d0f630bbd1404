#include "tests/unit/cache/tier/disk/power_loss.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <vector>

namespace cairn::cache::testing {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPage = 4096;
constexpr size_t kSector = 512;

// Held by a sync while it marks what is durable, and by a loss while it looks.
std::mutex g_mu;
std::string g_directory;  // Empty: nothing is watched.
std::atomic<uint64_t> g_syncs{0};

std::string ShadowOf(const std::string& directory) { return directory + ".durable"; }

std::optional<std::string> Below(const std::string& path) {
  if (g_directory.empty() || path.size() <= g_directory.size() + 1 ||
      path.compare(0, g_directory.size(), g_directory) != 0 || path[g_directory.size()] != '/') {
    return std::nullopt;
  }
  return path.substr(g_directory.size() + 1);
}

void Synced(int fd) {
  char path[4096];
  const ssize_t n = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof(path));
  if (n <= 0) return;
  const std::lock_guard lock(g_mu);
  const auto name = Below(std::string(path, static_cast<size_t>(n)));
  std::error_code error;
  if (!name || !fs::is_regular_file(g_directory + "/" + *name, error)) return;
  const fs::path shadow = ShadowOf(g_directory) + "/" + *name;
  fs::create_directories(shadow.parent_path(), error);
  fs::copy_file(g_directory + "/" + *name, shadow, fs::copy_options::overwrite_existing, error);
  ++g_syncs;
}

void Renamed(const char* from, const char* to) {
  const std::lock_guard lock(g_mu);
  const auto old_name = Below(from);
  const auto new_name = Below(to);
  if (!old_name || !new_name) return;
  const std::string shadow = ShadowOf(g_directory);
  // Not by the function that this file replaces.
  (void)syscall(SYS_rename, (shadow + "/" + *old_name).c_str(), (shadow + "/" + *new_name).c_str());
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
std::string Mixed(const std::string& durable, const std::string& now, const PowerLoss::Style& style,
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
    // What was appended to a page behind its durable bytes may be torn, not these bytes.
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

}  // namespace

PowerLoss::PowerLoss(std::string directory) {
  const std::lock_guard lock(g_mu);
  fs::create_directories(directory);
  g_directory = fs::canonical(directory).string();
  g_syncs = 0;
}

PowerLoss::~PowerLoss() {
  const std::lock_guard lock(g_mu);
  fs::remove_all(ShadowOf(g_directory));
  g_directory.clear();
}

uint64_t PowerLoss::syncs() const { return g_syncs; }

void PowerLoss::Leave(const std::string& to, const Style& style, std::mt19937_64& random) {
  const std::lock_guard lock(g_mu);
  const std::string shadow = ShadowOf(g_directory);
  std::vector<std::string> names, folders;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(g_directory, error)) {
    const std::string name = fs::relative(entry.path(), g_directory).string();
    if (entry.is_directory(error)) folders.push_back(name);
    if (entry.is_regular_file(error)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  fs::create_directories(to);
  for (const std::string& folder : folders) fs::create_directories(to + "/" + folder);
  for (const std::string& name : names) {
    const auto now = ReadFile(g_directory + "/" + name);
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

}  // namespace cairn::cache::testing

// These stand before the C library's for the whole program, RocksDB's library included.
extern "C" {

int fdatasync(int fd) {
  static const auto real = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fdatasync"));
  const int result = real(fd);
  if (result == 0) cairn::cache::testing::Synced(fd);
  return result;
}

int fsync(int fd) {
  static const auto real = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fsync"));
  const int result = real(fd);
  if (result == 0) cairn::cache::testing::Synced(fd);
  return result;
}

int rename(const char* from, const char* to) noexcept {
  static const auto real =
      reinterpret_cast<int (*)(const char*, const char*)>(dlsym(RTLD_NEXT, "rename"));
  const int result = real(from, to);
  if (result == 0) cairn::cache::testing::Renamed(from, to);
  return result;
}

}  // extern "C"
