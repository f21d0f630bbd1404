#include "tools/cairn/launch/directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common/net/operator_path.h"

namespace cairn::cli {
namespace {

constexpr char kState[] = "/state.json";
constexpr char kNewState[] = "/state.json.new";
constexpr size_t kMaxState = (1 << 20) + 1;

Status NotOurs(const std::string& path) {
  return Errorf(StatusCode::kFailedPrecondition,
                "dir: '{}' is not a directory that only user {} can write to", path, getuid());
}

bool IsOurs(const struct stat& there) {
  return there.st_uid == getuid() && (there.st_mode & 022) == 0;
}

Result<std::string> ReadOwnFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    return Errorf(errno == ENOENT || errno == ENOTDIR ? StatusCode::kNotFound
                                                      : StatusCode::kFailedPrecondition,
                  "'{}': {}", path, std::strerror(errno));
  }
  struct stat there {};
  std::string text;
  const bool ours = fstat(fd, &there) == 0 && S_ISREG(there.st_mode) && IsOurs(there);
  char buffer[16384];
  ssize_t n = 0;
  while (ours && text.size() < kMaxState && (n = read(fd, buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  if (!ours) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "'{}' is not a file that only user {} can write to", path, getuid());
  }
  return text;
}

}  // namespace

Result<std::string> DefaultLaunchDirectory(bool make) {
  CAIRN_ASSIGN_OR_RETURN(const std::string folder, net::RuntimeFolder("dir", make));
  return folder + "/cairn-up";
}

Result<std::unique_ptr<LaunchDirectory>> LaunchDirectory::Open(const std::string& path) {
  const bool made = mkdir(path.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) {
    return Errorf(StatusCode::kFailedPrecondition, "dir: cannot make '{}': {}", path,
                  std::strerror(errno));
  }
  return Lock(path, made);
}

Result<std::unique_ptr<LaunchDirectory>> LaunchDirectory::OpenExisting(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0) {
    return Errorf(StatusCode::kNotFound, "dir: '{}' does not exist: nothing was started there",
                  path);
  }
  return Lock(path, /*made=*/false);
}

Result<std::unique_ptr<LaunchDirectory>> LaunchDirectory::Lock(const std::string& path, bool made) {
  struct stat there {};
  if (lstat(path.c_str(), &there) != 0 || !S_ISDIR(there.st_mode) || !IsOurs(there)) {
    return NotOurs(path);
  }
  auto lock = DirectoryLock::Take(path, "another `cairn up` or `cairn down`");
  if (!lock.ok()) return Annotate(lock.status(), "dir");
  return std::unique_ptr<LaunchDirectory>(new LaunchDirectory(path, *std::move(lock), made));
}

bool LaunchDirectory::HasData() const { return access((path_ + "/data").c_str(), F_OK) == 0; }

Result<LaunchState> LaunchDirectory::ReadState() const { return ReadLaunchState(path_); }

Status LaunchDirectory::WriteState(const LaunchState& state) const {
  const std::string text = LaunchStateText(state);
  const std::string fresh = path_ + kNewState;
  const int fd = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  const bool written =
      fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  if (fd >= 0) close(fd);
  if (!written || rename(fresh.c_str(), (path_ + kState).c_str()) != 0) {
    return Errorf(StatusCode::kInternal, "dir: cannot write '{}{}': {}", path_, kState,
                  std::strerror(written ? errno : error));
  }
  return OkStatus();
}

void LaunchDirectory::Forget() const {
  std::error_code ignored;
  // Not only those of recorded processes: an `up` may have been killed between the two.
  std::vector<std::filesystem::path> logs;
  for (const auto& entry : std::filesystem::directory_iterator(path_, ignored)) {
    if (entry.path().extension() == ".log" && IsLaunchName(entry.path().stem().string())) {
      logs.push_back(entry.path());
    }
  }
  for (const std::filesystem::path& log : logs) std::filesystem::remove(log, ignored);
  std::filesystem::remove(path_ + kNewState, ignored);
  std::filesystem::remove(path_ + kState, ignored);
}

Status LaunchDirectory::Remove(bool made, bool keep_data) const {
  Forget();
  std::error_code error, ignored;
  if (!keep_data) std::filesystem::remove_all(path_ + "/data", error);
  std::filesystem::remove(path_ + "/" + DirectoryLock::kFile, ignored);
  if (made) rmdir(path_.c_str());
  if (error) {
    return Errorf(StatusCode::kInternal, "dir: cannot remove '{}/data': {}", path_,
                  error.message());
  }
  return OkStatus();
}

Result<LaunchState> ReadLaunchState(const std::string& directory) {
  const auto text = ReadOwnFile(directory + kState);
  if (text.status().code() == StatusCode::kNotFound) {
    return Errorf(StatusCode::kNotFound, "nothing runs in '{}'; `cairn up` starts something",
                  directory);
  }
  if (!text.ok()) return text.status();
  auto state = ParseLaunchState(*text);
  if (!state.ok()) return Annotate(state.status(), directory + kState);
  return state;
}

}  // namespace cairn::cli
