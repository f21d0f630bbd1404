#include "protocol/shm/socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/net/unix_path.h"
#include "protocol/shm/protocol.h"

namespace cairn::shm {
namespace {

bool GetPeer(int socket, ucred* peer) {
  socklen_t length = sizeof(*peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, peer, &length) == 0;
}

Result<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return InvalidArgument("socket path '{}': got {} characters, expected 1 to {}", path,
                           path.size(), sizeof(address.sun_path) - 1);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Result<Descriptor> NewSocket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) {
    return Errorf(StatusCode::kUnavailable, "socket: {}", std::strerror(errno));
  }
  return socket;
}

}  // namespace

void Descriptor::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Status Send(int socket, std::span<const std::byte> message, std::span<const int> descriptors) {
  CAIRN_CHECK(descriptors.size() <= kMaxSegmentsPerMessage);
  iovec data{const_cast<std::byte*>(message.data()), message.size()};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxSegmentsPerMessage)] = {};
  if (!descriptors.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), sizeof(int) * descriptors.size());
  }
  for (;;) {
    const ssize_t sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return OkStatus();
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS) {
      return Errorf(StatusCode::kResourceExhausted, "socket: the peer does not read");
    }
    return Errorf(StatusCode::kUnavailable, "socket: {}", std::strerror(errno));
  }
}

Result<Received> Receive(int socket) {
  Received received;
  std::byte buffer[kMaxMessageBytes];
  iovec data{buffer, sizeof(buffer)};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxSegmentsPerMessage)];
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t got;
  do {
    got = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (errno == EAGAIN) return Errorf(StatusCode::kNotFound, "socket: no message");
    return Errorf(StatusCode::kUnavailable, "socket: {}", std::strerror(errno));
  }
  // First what must be closed, whatever else is wrong.
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
      received.descriptors.emplace_back(fd);
    }
  }
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return InvalidArgument("socket: got a message longer than {} bytes or {} descriptors",
                           sizeof(buffer), kMaxSegmentsPerMessage);
  }
  received.message.assign(buffer, buffer + got);
  return received;
}

Result<Received> ReceiveBy(int socket, TimePoint deadline) {
  for (;;) {
    auto received = Receive(socket);
    if (received.ok() || received.status().code() != StatusCode::kNotFound) return received;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      return Errorf(StatusCode::kDeadlineExceeded, "socket: no message from the peer in time");
    }
    pollfd wait{socket, POLLIN, 0};
    poll(&wait, 1, static_cast<int>(std::min<int64_t>(left.count(), 60'000)));
  }
}

Result<Descriptor> Listen(const std::string& path, mode_t mode) {
  CAIRN_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  CAIRN_RETURN_IF_ERROR(Annotate(net::FreeUnixPath(path), "socket"));
  CAIRN_ASSIGN_OR_RETURN(Descriptor socket, NewSocket());
  // The mode before the name is connectable: bind makes the file with what the mode of the socket
  // and the umask allow.
  if (fchmod(socket.get(), mode) != 0 ||
      bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), mode) != 0 || listen(socket.get(), 128) != 0) {
    return Errorf(StatusCode::kFailedPrecondition, "socket '{}': {}", path, std::strerror(errno));
  }
  return socket;
}

Result<Descriptor> Dial(const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  CAIRN_ASSIGN_OR_RETURN(Descriptor socket, NewSocket());
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Errorf(StatusCode::kUnavailable, "socket '{}': {}", path, std::strerror(errno));
  }
  return socket;
}

Result<uid_t> PeerUid(int socket) {
  ucred peer{};
  if (!GetPeer(socket, &peer)) {
    return Errorf(StatusCode::kUnavailable, "socket: peer credentials: {}", std::strerror(errno));
  }
  return peer.uid;
}

Descriptor PeerProcess(int socket) {
  ucred peer{};
  if (!GetPeer(socket, &peer) || peer.pid <= 0 || peer.pid == getpid()) return Descriptor();
  return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
}

}  // namespace cairn::shm
