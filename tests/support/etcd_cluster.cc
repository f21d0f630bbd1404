#include "tests/support/etcd_cluster.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <utility>

namespace cairn::testing {
namespace {

constexpr char kServer[] = "/usr/bin/etcd";
constexpr char kClient[] = "/usr/bin/etcdctl";
constexpr std::chrono::seconds kPatience(120);

// A process that asks the kernel for any port, or connects without one, gets none of these.
std::vector<int> PortsThatTheKernelGivesNobody() {
  constexpr int kFirst = 10'000, kLast = 65'535;
  int low = 32'768, high = 60'999;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> low >> high;
  std::vector<int> ports;
  for (int port = kFirst; port <= kLast; ++port) {
    if (port < low || port > high) ports.push_back(port);
  }
  // The kernel gives all of them. Then only tests keep out of each other's way.
  for (int port = kFirst; ports.empty() && port <= kLast; ++port) ports.push_back(port);
  return ports;
}

// An abstract name, which only one process can have. Like ports, each network namespace has its
// own. Returns a descriptor, or -1: another process has it. tests/support/ports.py does the same.
int Reserve(int port) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CAIRN_CHECK(fd >= 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  // The first byte of the name is 0.
  const std::string text = fmt::format("cairn-test-port-{}", port);
  std::memcpy(name.sun_path + 1, text.data(), text.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  if (bind(fd, reinterpret_cast<const sockaddr*>(&name), size) == 0) return fd;
  close(fd);
  return -1;
}

bool NobodyListens(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CAIRN_CHECK(fd >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool free = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return free;
}

}  // namespace

int FreePort() { return FreePorts(1); }

int FreePorts(int count) {
  static const std::vector<int> ports = PortsThatTheKernelGivesNobody();
  const auto size = static_cast<size_t>(count);
  std::random_device random;
  for (int i = 0; i < 10'000; ++i) {
    const size_t first = random() % (ports.size() - size);
    if (ports[first + size - 1] != ports[first] + count - 1) continue;
    std::vector<int> reservations;
    for (size_t at = first; at < first + size; ++at) {
      const int reservation = Reserve(ports[at]);
      if (reservation < 0) break;
      reservations.push_back(reservation);
      if (!NobodyListens(ports[at])) break;
      // Those of the last round end with this process.
      if (at + 1 == first + size) return ports[first];
    }
    for (const int reservation : reservations) close(reservation);
  }
  CAIRN_CHECK(false);
  return -1;
}

Result<std::unique_ptr<EtcdCluster>> EtcdCluster::Start(Options options) {
  for (const char* const program : {kServer, kClient}) {
    if (!std::filesystem::exists(program)) {
      return Errorf(StatusCode::kNotFound, "{} is not installed", program);
    }
  }
  std::unique_ptr<EtcdCluster> cluster(new EtcdCluster(std::move(options)));
  cluster->token_ = fmt::format("cairn-test-{}-{}", getpid(), FreePort());
  cluster->members_.resize(static_cast<size_t>(cluster->options_.members));
  for (size_t i = 0; i < cluster->members_.size(); ++i) {
    Member& member = cluster->members_[i];
    if (!cluster->options_.places.empty()) member.place = cluster->options_.places[i];
    member.client_port = FreePort();
    member.peer_port = FreePort();
    member.directory = std::make_unique<TemporaryDirectory>();
  }
  for (int i = 0; i < cluster->options_.members; ++i) {
    if (Status status = cluster->Launch(i); !status.ok()) return status;
  }
  if (Status status = cluster->WaitUntilReady(); !status.ok()) return status;
  return cluster;
}

Status EtcdCluster::Launch(int i) {
  const bool tls = !options_.certificate.empty();
  Member& member = members_[static_cast<size_t>(i)];
  const std::string client = (tls ? "https://" : "http://") + member.client();
  std::string all;
  for (size_t m = 0; m < members_.size(); ++m) {
    all += fmt::format("{}m{}={}", m == 0 ? "" : ",", m, members_[m].peer());
  }
  Process::Options options{
      .argv = {kServer, "--name", fmt::format("m{}", i), "--data-dir",
               member.directory->path() + "/data", "--listen-client-urls", client,
               "--advertise-client-urls", client, "--listen-peer-urls", member.peer(),
               "--initial-advertise-peer-urls", member.peer(), "--initial-cluster", all,
               "--initial-cluster-token", token_, "--initial-cluster-state", "new",
               // Nobody reads its pipe, and a full one would stop it.
               "--logger", "zap", "--log-level", "error", "--log-outputs",
               member.directory->path() + "/log",
               // The disks of test machines are slow, and the data need not outlive the test.
               "--unsafe-no-fsync"},
      .network = member.place.network};
  if (tls) {
    options.argv.insert(options.argv.end(),
                        {"--cert-file", options_.certificate, "--key-file", options_.key});
  }
  options.argv.insert(options.argv.end(), options_.arguments.begin(), options_.arguments.end());
  auto process = Process::Start(options);
  if (!process.ok()) return process.status();
  member.process = *std::move(process);
  return OkStatus();
}

std::vector<std::string> EtcdCluster::endpoints() const {
  std::vector<std::string> endpoints;
  for (const Member& member : members_) endpoints.push_back(member.client());
  return endpoints;
}

Result<int> EtcdCluster::Leader() {
  for (size_t i = 0; i < members_.size(); ++i) {
    auto process = Process::Start({.argv = {kClient, "--endpoints", members_[i].client(),
                                            "--command-timeout", "10s", "endpoint", "status"},
                                   .environment = {"ETCDCTL_API=3"}});
    if (!process.ok()) return process.status();
    const auto exit = (*process)->WaitExit(kPatience);
    // "127.0.0.1:2379, 8e9e05c52164694d, 3.4.23, 20 kB, true, false, 2, ...": the fifth is "leads".
    if (exit.ok() && exit->exited && exit->code == 0 &&
        (*process)->out().find("kB, true,") != std::string::npos) {
      return static_cast<int>(i);
    }
  }
  return Errorf(StatusCode::kUnavailable, "etcd has no leader");
}

void EtcdCluster::Kill(int i) { member(i).Kill(); }

Status EtcdCluster::Restart(int i, bool wiped) {
  Member& member = members_[static_cast<size_t>(i)];
  if (wiped) member.directory = std::make_unique<TemporaryDirectory>();
  return Launch(i);
}

Status EtcdCluster::WaitUntilReady() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    const auto health = Ctl({"get", "ready"});
    if (health.ok()) return OkStatus();
    if (std::chrono::steady_clock::now() > deadline) return health.status();
  }
}

Result<std::string> EtcdCluster::Ctl(const std::vector<std::string>& arguments) {
  std::string all;
  for (const std::string& endpoint : endpoints()) all += (all.empty() ? "" : ",") + endpoint;
  Process::Options options{
      .argv = {kClient, "--endpoints", all, "--dial-timeout", "10s", "--command-timeout", "20s"},
      .environment = {"ETCDCTL_API=3"}};
  if (!options_.certificate.empty()) {
    options.argv.insert(options.argv.end(), {"--cacert", options_.certificate});
  }
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  auto process = Process::Start(options);
  if (!process.ok()) return process.status();
  const auto exit = (*process)->WaitExit(kPatience);
  if (!exit.ok()) return exit.status();
  if (!exit->exited || exit->code != 0) {
    return Errorf(StatusCode::kUnavailable, "etcdctl: {}", (*process)->err());
  }
  return (*process)->out();
}

}  // namespace cairn::testing
