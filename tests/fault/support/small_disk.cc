#include "tests/fault/support/small_disk.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace cairn::fault {
namespace {

Status FromErrno(const std::string& what) {
  const StatusCode code =
      errno == EACCES || errno == EPERM ? StatusCode::kPermissionDenied : StatusCode::kInternal;
  return Errorf(code, "{}: {}", what, std::strerror(errno));
}

// As root, or as whoever we are in a user namespace where that is allowed.
Status EnterOwnNamespace() {
  const uid_t uid = getuid();
  const gid_t gid = getgid();
  if (unshare(CLONE_NEWNS) != 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return FromErrno("unshare");
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << fmt::format("{} {} 1", uid, uid);
    std::ofstream("/proc/self/gid_map") << fmt::format("{} {} 1", gid, gid);
  }
  // Else what we mount would be seen outside.
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    if (errno == EINVAL)
      return Errorf(StatusCode::kPermissionDenied,
                    "mount --make-rprivate /: a chroot's root is no mount point");
    return FromErrno("mount --make-rprivate /");
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<SmallDisk>> SmallDisk::Mount(const std::string& path, uint64_t bytes) {
  static const Status entered = EnterOwnNamespace();
  CAIRN_RETURN_IF_ERROR(entered);
  if (mount("tmpfs", path.c_str(), "tmpfs", 0, fmt::format("size={}", bytes).c_str()) != 0)
    return FromErrno("mount of a tmpfs");
  return std::unique_ptr<SmallDisk>(new SmallDisk(path));
}

SmallDisk::~SmallDisk() { umount2(path_.c_str(), MNT_DETACH); }

uint64_t SmallDisk::FreeBytes() const {
  struct statvfs info {};
  return statvfs(path_.c_str(), &info) == 0 ? info.f_bavail * info.f_frsize : 0;
}

Status SmallDisk::TakeAway(uint64_t bytes) {
  const std::string path = path_ + "/taken-away";
  const int fd = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) return FromErrno(path);
  const std::string zeros(1 << 16, '\0');
  while (bytes > 0) {
    const ssize_t n = write(fd, zeros.data(), std::min<uint64_t>(bytes, zeros.size()));
    if (n <= 0) break;
    bytes -= static_cast<uint64_t>(n);
  }
  close(fd);
  return OkStatus();
}

}  // namespace cairn::fault
