#include "tools/cairn/process/identity.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <utility>

namespace cairn::cli {
namespace {

// Fields of /proc/PID/stat that follow the program's name, which may contain anything (proc(5)).
constexpr int kFieldsToStart = 19;  // From the state, field 3, to the start, field 22.

Status Ended(pid_t pid) {
  return Errorf(StatusCode::kNotFound, "process {} has ended", static_cast<int>(pid));
}

}  // namespace

std::string BootId() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

Result<ProcessIdentity> IdentityOf(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", static_cast<int>(pid)));
  std::string text;
  if (!file || !std::getline(file, text)) return Ended(pid);
  const size_t name_end = text.rfind(')');
  if (name_end == text.npos) return Ended(pid);
  std::istringstream fields(text.substr(name_end + 1));
  std::string state, skipped;
  fields >> state;
  for (int i = 1; i < kFieldsToStart; ++i) fields >> skipped;
  ProcessIdentity identity{.pid = pid};
  if (!(fields >> identity.start_ticks) || state == "Z" || state == "X") return Ended(pid);
  return identity;
}

Result<ProcessHandle> ProcessHandle::Open(const ProcessIdentity& identity) {
  if (identity.pid <= 1) return InvalidArgument("pid: got {}, expected more than 1", identity.pid);
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, identity.pid, 0));
  if (fd < 0) {
    if (errno == ESRCH || errno == EINVAL) return Ended(identity.pid);
    return Errorf(StatusCode::kInternal, "pidfd_open: error {}", errno);
  }
  ProcessHandle handle(fd);
  // Asked after the handle was opened: if the process that was meant lives now, it lived then.
  const auto now = IdentityOf(identity.pid);
  if (!now.ok() || *now != identity) return Ended(identity.pid);
  return handle;
}

ProcessHandle::ProcessHandle(ProcessHandle&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

ProcessHandle& ProcessHandle::operator=(ProcessHandle&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

ProcessHandle::~ProcessHandle() {
  if (fd_ >= 0) close(fd_);
}

void ProcessHandle::Signal(int signal) const {
  syscall(SYS_pidfd_send_signal, fd_, signal, nullptr, 0);
}

int ProcessHandle::Reap() const {
  siginfo_t info{};
  if (waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(fd_), &info, WEXITED | WNOHANG) !=
      0) {
    return 0;
  }
  // As waitpid encodes it.
  return info.si_code == CLD_EXITED ? (info.si_status & 0xff) << 8 : info.si_status & 0x7f;
}

bool WaitEnded(const std::vector<ProcessHandle>& processes, std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  std::vector<pollfd> waiting;
  for (const ProcessHandle& process : processes) waiting.push_back({process.fd(), POLLIN, 0});
  while (!waiting.empty()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    const int n =
        poll(waiting.data(), waiting.size(), static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    std::erase_if(waiting, [](const pollfd& p) { return p.revents != 0; });
  }
  return true;
}

}  // namespace cairn::cli
