#include "tests/support/etcd_cluster.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <utility>

namespace cairn::testing {
namespace {

constexpr char kServer[] = "/usr/bin/etcd";
constexpr char kClient[] = "/usr/bin/etcdctl";
constexpr std::chrono::seconds kPatience(30);

}  // namespace

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CAIRN_CHECK(fd >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  CAIRN_CHECK(bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  CAIRN_CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  close(fd);
  return ntohs(address.sin_port);
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
                                            "--command-timeout", "1s", "endpoint", "status"},
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
      .argv = {kClient, "--endpoints", all, "--dial-timeout", "1s", "--command-timeout", "2s"},
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
