#include "services/cache/store/tier/disk/value_files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/lifecycle/descriptor.h"

namespace cairn::cache::disk {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPage = 4096;

Status FromErrno(int error, const std::string& path, const char* what) {
  return Errorf(error == ENOSPC || error == EDQUOT ? StatusCode::kResourceExhausted
                                                   : StatusCode::kUnavailable,
                "disk tier: {} '{}': {}", what, path, std::strerror(error));
}

class OpenValueFile final : public OpenFile {
 public:
  explicit OpenValueFile(int fd) : OpenFile(fd) {}
  ~OpenValueFile() override { close(fd()); }
};

}  // namespace

DescriptorShare DescriptorShare::OfProcess() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  const auto soft = static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 20));
  return {.value_files = std::clamp<size_t>(soft / 8, 8, 1024),
          .database = static_cast<int>(std::clamp<size_t>(soft / 16, 16, 256))};
}

std::string ValueFiles::PathOf(uint32_t segment) const {
  return options_.path + fmt::format("/{:06}.seg", segment);
}

Result<std::vector<ValueFiles::Found>> ValueFiles::Open(const Options& options,
                                                        const SizeOf& size_of,
                                                        uint64_t default_bytes) {
  options_ = options;
  std::vector<Found> found;
  std::error_code error;
  fs::create_directories(options.path, error);
  if (error) {
    return Errorf(StatusCode::kUnavailable, "cannot make '{}': {}", options.path, error.message());
  }
  for (const auto& entry : fs::directory_iterator(options.path, error)) {
    const std::string name = entry.path().filename();
    if (name.size() != 10 || !name.ends_with(".seg")) continue;
    char* end = nullptr;
    const unsigned long number = std::strtoul(name.c_str(), &end, 10);
    if (end == name.c_str() + 6) found.push_back({.segment = static_cast<uint32_t>(number)});
  }
  if (error) {
    return Errorf(StatusCode::kUnavailable, "cannot list '{}': {}", options.path, error.message());
  }
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.segment < b.segment; });
  for (Found& file : found) {
    struct stat info {};
    const std::string path = PathOf(file.segment);
    if (stat(path.c_str(), &info) != 0) return FromErrno(errno, path, "stat");
    const auto size = static_cast<uint64_t>(info.st_size);
    file.bytes = size_of(file.segment).value_or(std::max(default_bytes, size / kPage * kPage));
    if (size >= file.bytes) continue;
    CAIRN_ASSIGN_OR_RETURN(const FileRef open_file, Use(file.segment));
    CAIRN_RETURN_IF_ERROR(Allocate(open_file->fd(), file.segment, file.bytes));
  }
  return found;
}

Status ValueFiles::Allocate(int fd, uint32_t segment, uint64_t bytes) const {
  int result;
  do {
    result = fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  // Without it, the file has holes, and a write may meet a full disk after all.
  if (result != 0 && errno == EOPNOTSUPP) result = ftruncate(fd, static_cast<off_t>(bytes));
  return result == 0 ? OkStatus() : FromErrno(errno, PathOf(segment), "allocate");
}

void ValueFiles::Keep(uint32_t segment, FileRef file) {
  open_[segment] = {std::move(file), ++uses_};
  if (open_.size() <= options_.max_open) return;
  const auto oldest = std::min_element(
      open_.begin(), open_.end(),
      [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; });
  open_.erase(oldest);
}

Result<FileRef> ValueFiles::Use(uint32_t segment) {
  {
    MutexLock lock(mu_);
    if (const auto it = open_.find(segment); it != open_.end()) {
      it->second.last_use = ++uses_;
      return it->second.file;
    }
  }
  const std::string path = PathOf(segment);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | (options_.direct ? O_DIRECT : 0));
  if (fd < 0) return FromErrno(errno, path, "open");
  auto file = std::make_shared<const OpenValueFile>(fd);
  MutexLock lock(mu_);
  Keep(segment, file);
  return file;
}

Status ValueFiles::Make(uint32_t segment, uint64_t bytes) {
  const std::string path = PathOf(segment);
  const int flags = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | (options_.direct ? O_DIRECT : 0);
  const int fd = open(path.c_str(), flags, 0600);
  if (fd < 0) return FromErrno(errno, path, "make");
  auto file = std::make_shared<const OpenValueFile>(fd);
  if (Status status = Allocate(fd, segment, bytes); !status.ok()) {
    unlink(path.c_str());
    return status;
  }
  MutexLock lock(mu_);
  Keep(segment, std::move(file));
  return OkStatus();
}

void ValueFiles::Delete(uint32_t segment) {
  {
    MutexLock lock(mu_);
    open_.erase(segment);
  }
  unlink(PathOf(segment).c_str());
}

Status ValueFiles::Sync(uint32_t segment) {
  const Result<FileRef> file = Use(segment);
  if (!file.ok()) {
    return access(PathOf(segment).c_str(), F_OK) == 0 ? file.status() : OkStatus();
  }
  return fdatasync((*file)->fd()) == 0 ? OkStatus() : FromErrno(errno, PathOf(segment), "sync");
}

Status ValueFiles::SyncNames() {
  const Descriptor folder(open(options_.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return FromErrno(errno, options_.path, "open");
  return fsync(folder.get()) == 0 ? OkStatus() : FromErrno(errno, options_.path, "sync");
}

uint64_t ValueFiles::FreeBytes() const {
  struct statvfs info {};
  if (statvfs(options_.path.c_str(), &info) != 0) return UINT64_MAX;
  return uint64_t{info.f_bavail} * info.f_frsize;
}

}  // namespace cairn::cache::disk
