#include "tests/support/name_server.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/etcd_cluster.h"

namespace cairn::testing {
namespace {

constexpr char kServer[] = "/usr/sbin/dnsmasq";

// Whether somebody holds the port for datagrams. dnsmasq binds it before it answers, and keeps
// questions that arrive before it reads them.
bool Listens(int port) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return !free;
}

}  // namespace

Result<std::unique_ptr<NameServer>> NameServer::Create() {
  if (!std::filesystem::exists(kServer)) {
    return Errorf(StatusCode::kNotFound, "{} is not installed", kServer);
  }
  return std::unique_ptr<NameServer>(new NameServer(FreePort()));
}

Status NameServer::Serve(const Zone& zone) {
  Stop();
  std::vector<std::string> argv = {kServer,
                                   "--keep-in-foreground",
                                   "--log-facility=/dev/null",
                                   "--no-resolv",
                                   "--no-hosts",
                                   "--conf-file=/dev/null",
                                   "--user=root",
                                   "--pid-file=",
                                   "--bind-interfaces",
                                   "--local=/test/",
                                   "--listen-address=127.0.0.1",
                                   fmt::format("--port={}", port_)};
  for (const std::string& address : zone.addresses) {
    argv.push_back(fmt::format("--host-record={},{}", zone.name, address));
  }
  for (const Service& service : zone.services) {
    argv.push_back(fmt::format("--srv-host={},{},{}", service.name, service.target, service.port));
  }
  auto process = Process::Start({.argv = argv});
  if (!process.ok()) return process.status();
  process_ = *std::move(process);
  while (!Listens(port_)) {
    if (!process_->running()) {
      return Errorf(StatusCode::kUnavailable, "dnsmasq ended: {}", process_->err());
    }
    poll(nullptr, 0, 1);
  }
  return OkStatus();
}

void NameServer::Stop() { process_.reset(); }

}  // namespace cairn::testing
