#include "services/cache/store/tier/segment_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

namespace cairn::cache {
namespace {

int OpenAgain(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

}  // namespace

Result<int> OpenForOthers(int fd) {
  int opened = OpenAgain(fd);
  // Without /proc it cannot be told from our own: MayBeHeldByOthers fails in the same way, and then
  // takes it for held.
  if (opened < 0 && errno != EMFILE && errno != ENFILE) opened = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (opened < 0) {
    return Errorf(StatusCode::kResourceExhausted, "host arena: descriptor of a segment: {}",
                  std::strerror(errno));
  }
  return opened;
}

bool MayBeHeldByOthers(int fd) {
  // The file that memfd_create gave is not counted as open. This one is, and the lease knows it.
  const int opened = OpenAgain(fd);
  if (opened < 0) return true;
  // If somebody opens the file while the lease is there, the kernel sends a signal. SIGIO, which it
  // would take, ends the process.
  (void)fcntl(opened, F_SETSIG, SIGURG);
  const bool granted = fcntl(opened, F_SETLEASE, F_WRLCK) == 0;
  if (granted) (void)fcntl(opened, F_SETLEASE, F_UNLCK);
  close(opened);
  return !granted;
}

bool PunchAll(int fd, uint64_t bytes) {
  int result;
  do {
    result =
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

RetiredMemories::~RetiredMemories() {
  for (const Memory& memory : memories_) close(memory.fd);
}

void RetiredMemories::Sweep() {
  std::erase_if(memories_, [this](const Memory& memory) {
    if (MayBeHeldByOthers(memory.fd)) return false;
    close(memory.fd);
    bytes_ -= memory.bytes;
    return true;
  });
}

bool RetiredMemories::Take(uint64_t bytes) {
  if (!HasRoom(bytes)) Sweep();
  if (!HasRoom(bytes)) return false;
  bytes_ += bytes;
  return true;
}

}  // namespace cairn::cache
