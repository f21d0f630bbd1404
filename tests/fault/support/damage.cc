#include "tests/fault/support/damage.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

namespace cairn::fault {
namespace {

constexpr uint64_t kPage = 4096;

Status FromErrno(const std::string& what) {
  const StatusCode code =
      errno == EACCES || errno == EPERM ? StatusCode::kPermissionDenied : StatusCode::kInternal;
  return Errorf(code, "{}: {}", what, std::strerror(errno));
}

}  // namespace

Result<ArenaMemory> ArenaMemory::Open(pid_t pid) {
  ArenaMemory arena;
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:cairn-arena") == std::string::npos) continue;
    uint64_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64, &begin, &end) != 2) continue;
    arena.ranges_.push_back({begin, end - begin});
    arena.bytes_ += end - begin;
  }
  arena.fd_ = open(fmt::format("/proc/{}/mem", pid).c_str(), O_RDWR | O_CLOEXEC);
  if (arena.fd_ < 0) return FromErrno("open /proc/PID/mem");
  if (arena.ranges_.empty()) return Errorf(StatusCode::kNotFound, "process {} maps no arena", pid);
  std::byte probe{};
  if (pread(arena.fd_, &probe, 1, static_cast<off_t>(arena.ranges_.front().address)) != 1)
    return FromErrno("read of /proc/PID/mem");
  return arena;
}

ArenaMemory::~ArenaMemory() {
  if (fd_ >= 0) close(fd_);
}

ArenaMemory::ArenaMemory(ArenaMemory&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), ranges_(std::move(other.ranges_)), bytes_(other.bytes_) {}

Result<std::optional<uint64_t>> ArenaMemory::FindOnPage(std::span<const std::byte> needle) const {
  std::vector<std::byte> chunk(1 << 20);
  uint64_t base = 0;
  for (const Range& range : ranges_) {
    for (uint64_t at = 0; at < range.bytes; at += chunk.size()) {
      const size_t want = std::min<uint64_t>(chunk.size(), range.bytes - at);
      const ssize_t n = pread(fd_, chunk.data(), want, static_cast<off_t>(range.address + at));
      if (n != static_cast<ssize_t>(want)) return FromErrno("read of /proc/PID/mem");
      for (uint64_t page = 0; page + kPage <= want; page += kPage) {
        const size_t head = std::min<size_t>(needle.size(), kPage);
        if (std::memcmp(chunk.data() + page, needle.data(), head) == 0)
          return std::optional<uint64_t>(base + at + page);
      }
    }
    base += range.bytes;
  }
  return std::optional<uint64_t>();
}

Status ArenaMemory::FlipBit(uint64_t offset, unsigned bit) const {
  for (const Range& range : ranges_) {
    if (offset >= range.bytes) {
      offset -= range.bytes;
      continue;
    }
    std::byte value{};
    const auto at = static_cast<off_t>(range.address + offset);
    if (pread(fd_, &value, 1, at) != 1) return FromErrno("read of /proc/PID/mem");
    value ^= std::byte{1} << (bit % 8);
    if (pwrite(fd_, &value, 1, at) != 1) return FromErrno("write to /proc/PID/mem");
    return OkStatus();
  }
  return InvalidArgument("offset {} is past the arena's {} bytes", offset, bytes_);
}

Status FlipBitsInFile(const std::string& path, uint32_t count, std::mt19937_64& random) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return FromErrno(path);
  const off_t size = lseek(fd, 0, SEEK_END);
  Status status = size > 0 ? OkStatus() : InvalidArgument("{} is empty", path);
  for (uint32_t i = 0; i < count && status.ok(); ++i) {
    const auto at = static_cast<off_t>(random() % static_cast<uint64_t>(size));
    std::byte value{};
    if (pread(fd, &value, 1, at) != 1) {
      status = FromErrno(path);
      break;
    }
    value ^= std::byte{1} << (random() % 8);
    if (pwrite(fd, &value, 1, at) != 1) status = FromErrno(path);
  }
  close(fd);
  return status;
}

std::vector<std::string> FilesUnder(const std::string& directory, const std::string& suffix) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory, error)) {
    const std::string path = entry.path().string();
    if (path.size() < suffix.size() ||
        path.compare(path.size() - suffix.size(), suffix.size(), suffix) != 0)
      continue;
    if (entry.is_regular_file(error) && entry.file_size(error) > 0 && !error) files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  return files;
}

void CopyDirectory(const std::string& from, const std::string& to) {
  std::filesystem::remove_all(to);
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
}

}  // namespace cairn::fault
