#include "tests/support/network_namespace.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "tests/support/process.h"

namespace cairn::testing {
namespace {

Status FromErrno(const std::string& what) {
  const StatusCode code =
      errno == EACCES || errno == EPERM ? StatusCode::kPermissionDenied : StatusCode::kInternal;
  return Errorf(code, "{}: {}", what, std::strerror(errno));
}

// In the namespace of the calling thread.
Status RaiseLoopback() {
  const OwnedFd any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP;
  return ioctl(any.get(), SIOCSIFFLAGS, &request) == 0 ? OkStatus() : FromErrno("lo up");
}

}  // namespace

OwnedFd::OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) close(fd_);
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

OwnedFd::~OwnedFd() {
  if (fd_ >= 0) close(fd_);
}

Result<NetworkNamespace> NetworkNamespace::Current() {
  OwnedFd fd(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return FromErrno("/proc/thread-self/ns/net");
  return NetworkNamespace(std::move(fd));
}

Result<NetworkNamespace> NetworkNamespace::Create() {
  Result<NetworkNamespace> created = Errorf(StatusCode::kInternal, "not made");
  std::thread([&] {
    if (unshare(CLONE_NEWNET) != 0) {
      created = FromErrno("unshare of the network");
      return;
    }
    const Status raised = RaiseLoopback();
    created = raised.ok() ? Current() : Result<NetworkNamespace>(raised);
  }).join();
  return created;
}

std::string NetworkNamespace::path() const { return fmt::format("/proc/{}/fd/{}", getpid(), fd()); }

void NetworkNamespace::Run(const std::function<void()>& function) const {
  std::thread([&] {
    const InNetwork inside(*this);
    function();
  }).join();
}

Status NetworkNamespace::Command(const std::vector<std::string>& command) const {
  Process::Options options{.argv = command, .network = this};
  options.argv[0] = FindProgram(command[0]);
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Process> process, Process::Start(options));
  CAIRN_ASSIGN_OR_RETURN(const ExitStatus exit, process->WaitExit(std::chrono::seconds(120)));
  if (exit.exited && exit.code == 0) return OkStatus();
  return Errorf(StatusCode::kInternal, "{}: {}", fmt::join(command, " "), process->err());
}

InNetwork::InNetwork(const NetworkNamespace& network) : before_(*NetworkNamespace::Current()) {
  CAIRN_CHECK(setns(network.fd(), CLONE_NEWNET) == 0);
}

InNetwork::~InNetwork() { CAIRN_CHECK(setns(before_.fd(), CLONE_NEWNET) == 0); }

std::string FindProgram(const std::string& name) {
  for (const char* const folder : {"/usr/sbin/", "/usr/bin/", "/sbin/", "/bin/"}) {
    std::error_code error;
    if (std::filesystem::exists(folder + name, error)) return folder + name;
  }
  return {};
}

Status EnterOwnNetwork() {
  const uid_t uid = getuid();
  const gid_t gid = getgid();
  if (unshare(CLONE_NEWNET) != 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return FromErrno("unshare of the network");
    // As root of it: a program that another user starts there has no rights.
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << fmt::format("0 {} 1", uid);
    std::ofstream("/proc/self/gid_map") << fmt::format("0 {} 1", gid);
  }
  return RaiseLoopback();
}

}  // namespace cairn::testing
