#include "services/cache/tier/disk/value_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace cairn::cache::disk {
namespace {

namespace fs = std::filesystem;

Status FromErrno(int error, const std::string& path, const char* what) {
  return Errorf(error == ENOSPC || error == EDQUOT ? StatusCode::kResourceExhausted
                                                   : StatusCode::kUnavailable,
                "disk tier: {} '{}': {}", what, path, std::strerror(error));
}

}  // namespace

ValueFiles::~ValueFiles() {
  for (auto& fd : fds_) {
    if (fd >= 0) close(fd);
  }
}

std::string ValueFiles::PathOf(uint32_t segment) const {
  return options_.path + fmt::format("/{:06}.seg", segment);
}

Status ValueFiles::Open(const Options& options, std::vector<uint32_t>* found) {
  options_ = options;
  std::error_code error;
  fs::create_directories(options.path, error);
  if (error)
    return Errorf(StatusCode::kUnavailable, "cannot make '{}': {}", options.path, error.message());
  for (const auto& entry : fs::directory_iterator(options.path, error)) {
    const std::string name = entry.path().filename();
    if (name.size() != 10 || !name.ends_with(".seg")) continue;
    char* end = nullptr;
    const unsigned long number = std::strtoul(name.c_str(), &end, 10);
    if (end == name.c_str() + 6) found->push_back(static_cast<uint32_t>(number));
  }
  if (error)
    return Errorf(StatusCode::kUnavailable, "cannot list '{}': {}", options.path, error.message());
  std::sort(found->begin(), found->end());
  const uint32_t count = std::max(options.max_segments, found->empty() ? 0 : found->back() + 1);
  fds_ = std::vector<std::atomic<int>>(count);
  for (auto& fd : fds_) fd = -1;
  const int flags = O_RDWR | O_CLOEXEC | (options.direct ? O_DIRECT : 0);
  for (const uint32_t segment : *found) {
    const int fd = open(PathOf(segment).c_str(), flags);
    if (fd < 0) return FromErrno(errno, PathOf(segment), "open");
    fds_[segment] = fd;
    struct stat info {};
    if (fstat(fd, &info) != 0) return FromErrno(errno, PathOf(segment), "stat");
    if (static_cast<uint64_t>(info.st_size) < options.segment_bytes) {
      CAIRN_RETURN_IF_ERROR(Allocate(fd, segment));
    }
  }
  return OkStatus();
}

Status ValueFiles::Allocate(int fd, uint32_t segment) const {
  int result;
  do {
    result = fallocate(fd, 0, 0, static_cast<off_t>(options_.segment_bytes));
  } while (result != 0 && errno == EINTR);
  // Without it, the file has holes, and a write may meet a full disk after all.
  if (result != 0 && errno == EOPNOTSUPP)
    result = ftruncate(fd, static_cast<off_t>(options_.segment_bytes));
  return result == 0 ? OkStatus() : FromErrno(errno, PathOf(segment), "allocate");
}

Status ValueFiles::Make(uint32_t segment) {
  const std::string path = PathOf(segment);
  const int flags = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | (options_.direct ? O_DIRECT : 0);
  const int fd = open(path.c_str(), flags, 0600);
  if (fd < 0) return FromErrno(errno, path, "make");
  if (Status status = Allocate(fd, segment); !status.ok()) {
    close(fd);
    unlink(path.c_str());
    return status;
  }
  fds_[segment].store(fd, std::memory_order_release);
  return OkStatus();
}

void ValueFiles::Delete(uint32_t segment) {
  close(fds_[segment].exchange(-1));
  unlink(PathOf(segment).c_str());
}

}  // namespace cairn::cache::disk
