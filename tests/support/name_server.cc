#include "tests/support/name_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "tests/support/etcd_cluster.h"
#include "tests/support/network_namespace.h"

namespace cairn::testing {
namespace {

constexpr char kServer[] = "/usr/sbin/dnsmasq";

// Whether somebody holds the port for datagrams. dnsmasq binds it before it answers, and keeps
// questions that arrive before it reads them.
bool Listens(const std::string& host, int port) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  CAIRN_CHECK(inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1);
  const bool free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return !free;
}

}  // namespace

Result<std::unique_ptr<NameServer>> NameServer::Create(ServerPlace place) {
  if (!std::filesystem::exists(kServer)) {
    return Errorf(StatusCode::kNotFound, "{} is not installed", kServer);
  }
  return std::unique_ptr<NameServer>(new NameServer(std::move(place), FreePort()));
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
                                   "--listen-address=" + place_.address,
                                   fmt::format("--port={}", port_)};
  for (const std::string& address : zone.addresses) {
    argv.push_back(fmt::format("--host-record={},{}", zone.name, address));
  }
  for (const Service& service : zone.services) {
    argv.push_back(fmt::format("--srv-host={},{},{}", service.name, service.target, service.port));
  }
  auto process = Process::Start({.argv = argv, .network = place_.network});
  if (!process.ok()) return process.status();
  process_ = *std::move(process);
  std::optional<InNetwork> inside;
  if (place_.network != nullptr) inside.emplace(*place_.network);
  while (!Listens(place_.address, port_)) {
    if (!process_->running()) {
      return Errorf(StatusCode::kUnavailable, "dnsmasq ended: {}", process_->err());
    }
    poll(nullptr, 0, 1);
  }
  return OkStatus();
}

void NameServer::Stop() { process_.reset(); }

}  // namespace cairn::testing
