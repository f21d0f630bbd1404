#include "common/rpc/operator_socket.h"

#include <grpcpp/server_posix.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>

#include "common/concurrency/mutex.h"
#include "common/log/log.h"
#include "common/net/unix_path.h"

namespace cairn::rpc {
namespace {

constexpr int kBacklog = 16;
constexpr int kPauseMs = 100;  // After an error that would come again at once.
constexpr std::string_view kPeerPrefix = "fd:";

// The processes behind the descriptors that gRPC was given. There is one list for this process,
// because the numbers of descriptors are the process's.
class Operators {
 public:
  static Operators& Get() {
    static auto* const all = new Operators();
    return *all;
  }

  void Add(int fd, const Operator& who) {
    struct stat now {};
    if (fstat(fd, &now) != 0) return;
    MutexLock lock(mu_);
    std::erase_if(all_, [](const auto& entry) { return !IsOpen(entry.first, entry.second.inode); });
    all_.insert_or_assign(fd, Entry{now.st_ino, who});
  }
  std::optional<Operator> Find(int fd) {
    MutexLock lock(mu_);
    const auto it = all_.find(fd);
    if (it == all_.end() || !IsOpen(fd, it->second.inode)) return std::nullopt;
    return it->second.who;
  }

 private:
  struct Entry {
    ino_t inode;  // The socket's. A number that was given back may be another file's by now.
    Operator who;
  };
  static bool IsOpen(int fd, ino_t inode) {
    struct stat now {};
    return fstat(fd, &now) == 0 && S_ISSOCK(now.st_mode) && now.st_ino == inode;
  }

  Mutex mu_;
  std::map<int, Entry> all_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::string Operator::Describe() const { return fmt::format("uid {}, pid {}", uid, pid); }

std::optional<Operator> OperatorOf(std::string_view peer) {
  if (!peer.starts_with(kPeerPrefix)) return std::nullopt;
  peer.remove_prefix(kPeerPrefix.size());
  int fd = -1;
  const auto read = std::from_chars(peer.data(), peer.data() + peer.size(), fd);
  if (read.ec != std::errc() || read.ptr != peer.data() + peer.size()) return std::nullopt;
  return Operators::Get().Find(fd);
}

bool OperatorSocket::Allows(uid_t uid) { return uid == geteuid() || uid == 0; }

Result<std::unique_ptr<OperatorSocket>> OperatorSocket::Listen(const std::string& path,
                                                               grpc::Server* server) {
  std::unique_ptr<OperatorSocket> made(new OperatorSocket(path, server));
  CAIRN_RETURN_IF_ERROR(made->Open());
  made->thread_ = std::thread([socket = made.get()] { socket->Run(); });
  return made;
}

OperatorSocket::~OperatorSocket() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    (void)!write(stop_, &one, sizeof one);
    thread_.join();
  }
  if (bound_) unlink(path_.c_str());
  if (listening_ >= 0) close(listening_);
  if (stop_ >= 0) close(stop_);
}

Status OperatorSocket::Open() {
  const auto failed = [this](const char* what) {
    return Errorf(StatusCode::kUnavailable, "'{}': {}: {}", path_, what, std::strerror(errno));
  };
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  if (path_.empty() || path_.front() != '/' || path_.size() >= sizeof at.sun_path) {
    return InvalidArgument("got '{}', expected an absolute path of at most {} characters", path_,
                           sizeof at.sun_path - 1);
  }
  path_.copy(at.sun_path, path_.size());
  const auto* const address = reinterpret_cast<const sockaddr*>(&at);
  CAIRN_RETURN_IF_ERROR(net::FreeUnixPath(path_));

  stop_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  listening_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (stop_ < 0 || listening_ < 0) return failed("socket");
  // Nobody else may connect even before the file's mode is set: the peer's user is checked, too.
  if (bind(listening_, address, sizeof at) != 0) return failed("bind");
  bound_ = true;
  if (chmod(path_.c_str(), 0600) != 0) return failed("chmod");
  if (listen(listening_, kBacklog) != 0) return failed("listen");
  return OkStatus();
}

void OperatorSocket::Run() {
  pthread_setname_np(pthread_self(), "operators");
  for (;;) {
    pollfd polled[] = {{stop_, POLLIN, 0}, {listening_, POLLIN, 0}};
    if (poll(polled, 2, -1) < 0) continue;
    if (polled[0].revents != 0) return;
    Accept();
  }
}

void OperatorSocket::Accept() {
  const int fd = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
    pollfd stop{stop_, POLLIN, 0};
    poll(&stop, 1, kPauseMs);
    return;
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || !Allows(peer.uid)) {
    log::Warn("operator_refused", {{"uid", log::Num(peer.uid)}, {"pid", log::Num(peer.pid)}});
    close(fd);
    return;
  }
  // Before a call can come. gRPC calls such a peer "fd:<number>".
  Operators::Get().Add(fd, {.uid = peer.uid, .pid = peer.pid});
  // The descriptor is gRPC's from here on.
  grpc::AddInsecureChannelFromFd(server_, fd);
}

}  // namespace cairn::rpc
