#include "tests/fault/adversary/tested_node.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "cairn/client/connect.h"
#include "tests/support/etcd_cluster.h"

namespace cairn::fault {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kLogBytes = 16 << 10;
// Clients need a moment until they are connected again.
constexpr Duration kComeBack = seconds(2);

std::string LineField(const std::string& line, const std::string& name) {
  const size_t at = line.find(name + "=");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 1;
  return line.substr(begin, line.find(' ', begin) - begin);
}

TimePoint Now() { return SteadyClock::Get().Now(); }

}  // namespace

const std::vector<std::string>& SmallNodeArgs() {
  static const std::vector<std::string> kArgs = {"--admin.allow_loopback",
                                                 "true",
                                                 "--host.capacity",
                                                 "512MiB",
                                                 "--host.prefault",
                                                 "false",
                                                 "--disk.capacity",
                                                 "1GiB",
                                                 "--disk.min_free",
                                                 "0",
                                                 "--index.capacity",
                                                 "32MiB",
                                                 "--rpc.memory",
                                                 "64MiB",
                                                 "--limits.transfers",
                                                 "32MiB",
                                                 "--limits.namespaces",
                                                 "512",
                                                 "--lease.default_ttl",
                                                 "5s",
                                                 "--reservation.default_ttl",
                                                 "5s",
                                                 "--log.level",
                                                 "info"};
  return kArgs;
}

void DropHostileTenants(const std::string& address) {
  const auto admin = client::ConnectAdmin({.address = address});
  const auto namespaces = (*admin)->ListNamespaces("", {.deadline = seconds(10)});
  if (!namespaces.ok()) return;
  std::set<std::string> tenants;
  for (const client::NamespaceInfo& info : *namespaces) tenants.insert(info.spec.tenant);
  for (const std::string& tenant : tenants) {
    if (tenant.rfind("honest-", 0) != 0) {
      (void)(*admin)->DropTenant(tenant, {.deadline = seconds(10)});
    }
  }
}

Result<std::unique_ptr<TestedNode>> TestedNode::Start(const Options& options) {
  std::unique_ptr<TestedNode> node(new TestedNode(options));
  int log[2];
  if (pipe2(log, O_CLOEXEC | O_NONBLOCK) != 0) {
    return Errorf(StatusCode::kInternal, "pipe: no descriptors");
  }
  node->log_read_ = log[0];
  node->log_write_ = log[1];
  // The child keeps this end, and opens it again as its stderr, without O_NONBLOCK.
  fcntl(node->log_write_, F_SETFD, 0);
  node->log_reader_ = std::thread([raw = node.get()] { raw->ReadLog(); });
  node->keeper_ = std::thread([raw = node.get()] { raw->Keep(); });
  CAIRN_RETURN_IF_ERROR(node->InKeeper([raw = node.get()] {
    MutexLock lock(raw->mu_);
    return raw->Launch({});
  }));
  return node;
}

TestedNode::~TestedNode() {
  done_.store(true);
  if (keeper_.joinable()) keeper_.join();
  if (log_reader_.joinable()) log_reader_.join();
  if (log_read_ >= 0) close(log_read_);
  if (log_write_ >= 0) close(log_write_);
}

Status TestedNode::Launch(const std::vector<std::string>& more_args) {
  // The shell sets the limits, and becomes the node.
  const std::string script =
      fmt::format("ulimit -v {}; ulimit -n {}; exec \"$@\" 2>/dev/fd/{}",
                  options_.address_space_bytes / 1024, options_.descriptors, log_write_);
  // Ports that nobody else gets while it starts again there.
  const auto anywhere = [] { return fmt::format("127.0.0.1:{}", testing::FreePort()); };
  const std::string listen = address_.empty() ? anywhere() : address_;
  const std::string admin = admin_.empty() ? anywhere() : admin_;
  std::vector<std::string> argv = {"/bin/sh",
                                   "-c",
                                   script,
                                   "sh",
                                   testing::Binary("cairn-cache"),
                                   "--listen",
                                   listen,
                                   "--admin.listen",
                                   admin,
                                   "--local.socket",
                                   options_.directory + "/node.sock",
                                   "--disk.path",
                                   options_.directory + "/disk"};
  argv.insert(argv.end(), options_.args.begin(), options_.args.end());
  argv.insert(argv.end(), more_args.begin(), more_args.end());
  CAIRN_ASSIGN_OR_RETURN(process_, testing::Process::Start({.argv = argv}));
  pid_.store(process_->pid());
  const auto line = process_->WaitForLine("ready ", seconds(120));
  if (!line.ok()) return Annotate(line.status(), EndOfLog());
  if (address_.empty()) {  // Others read them without a lock, and they stay what they are.
    address_ = LineField(*line, "grpc");
    admin_ = LineField(*line, "admin");
  }
  return OkStatus();
}

Status TestedNode::End(bool kill) {
  Measure();
  if (kill) {
    process_->Kill();
    return OkStatus();
  }
  process_->Signal(SIGTERM);
  CAIRN_ASSIGN_OR_RETURN(const testing::ExitStatus exit, process_->WaitExit(seconds(120)));
  if (exit.exited && exit.code == 0) return OkStatus();
  return Errorf(StatusCode::kInternal, "after SIGTERM the node ended with {} {}",
                exit.exited ? "code" : "signal", exit.code);
}

Status TestedNode::InKeeper(std::function<Status()> job) {
  MutexLock caller(callers_mu_);
  MutexLock lock(jobs_mu_);
  job_ = std::move(job);
  job_done_ = false;
  jobs_changed_.Wait(jobs_mu_,
                     [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(jobs_mu_) { return job_done_; });
  return job_result_;
}

Status TestedNode::Restart(bool kill, const std::vector<std::string>& more_args) {
  return InKeeper([this, kill, &more_args] {
    MutexLock lock(mu_);
    return RestartNow(kill, more_args);
  });
}

Status TestedNode::RestartNow(bool kill, const std::vector<std::string>& more_args) {
  size_t number;
  {
    MutexLock notes(notes_mu_);
    number = away_.size();
    away_.push_back({Now(), TimePoint::max()});
  }
  const Status ended = End(kill);
  process_->Kill();
  Status started = Launch(more_args);
  if (!started.ok()) {
    started = Annotate(started, "restart");
    (void)Launch({});
  }
  MutexLock notes(notes_mu_);
  away_[number].end = Now() + kComeBack;
  return ended.ok() ? started : ended;
}

Status TestedNode::Stop() {
  return InKeeper([this] {
    MutexLock lock(mu_);
    const Status ended = End(/*kill=*/false);
    done_.store(true);
    return ended;
  });
}

bool TestedNode::WasAwayOnPurpose(TimePoint begin, TimePoint end) const {
  MutexLock lock(notes_mu_);
  return std::any_of(away_.begin(), away_.end(),
                     [&](const Away& away) { return begin <= away.end && away.begin <= end; });
}

uint64_t TestedNode::deaths() const {
  MutexLock lock(notes_mu_);
  return deaths_;
}

std::string TestedNode::last_death() const {
  MutexLock lock(notes_mu_);
  return last_death_;
}

uint64_t TestedNode::open_descriptors() const {
  uint64_t count = 0;
  DIR* folder = opendir(fmt::format("/proc/{}/fd", pid_.load()).c_str());
  if (folder == nullptr) return 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count < 2 ? 0 : count - 2;
}

void TestedNode::Measure() {
  std::ifstream status(fmt::format("/proc/{}/status", process_->pid()));
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) != 0) continue;
    const uint64_t bytes = std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
    peak_bytes_.store(std::max(peak_bytes_.load(), bytes));
  }
}

void TestedNode::ReadLog() {
  std::vector<char> buffer(64 << 10);
  while (!done_.load()) {
    pollfd wait{log_read_, POLLIN, 0};
    if (log_is_stuck_.load()) {
      poll(nullptr, 0, 20);
      continue;
    }
    if (poll(&wait, 1, 100) <= 0) continue;
    const ssize_t got = read(log_read_, buffer.data(), buffer.size());
    if (got <= 0) continue;
    MutexLock lock(notes_mu_);
    log_.append(buffer.data(), static_cast<size_t>(got));
    if (log_.size() > kLogBytes) log_.erase(0, log_.size() - kLogBytes);
  }
}

std::string TestedNode::EndOfLog() const {
  MutexLock lock(notes_mu_);
  std::string end = log_.substr(log_.size() - std::min<size_t>(log_.size(), 300));
  std::replace(end.begin(), end.end(), '\n', ' ');
  return "..." + end;
}

void TestedNode::Keep() {
  while (!done_.load()) {
    std::function<Status()> job;
    {
      MutexLock lock(jobs_mu_);
      jobs_changed_.WaitUntil(
          jobs_mu_, Now() + milliseconds(50),
          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(jobs_mu_) { return job_ != nullptr; });
      job = std::exchange(job_, nullptr);
    }
    if (job != nullptr) {
      const Status result = job();
      MutexLock lock(jobs_mu_);
      job_result_ = result;
      job_done_ = true;
      jobs_changed_.NotifyAll();
      continue;
    }
    MutexLock lock(mu_);
    if (process_ == nullptr) continue;
    Measure();
    if (process_->running()) continue;
    const auto exit = process_->WaitExit(milliseconds(1));
    const std::string why = fmt::format("{} {}: {}", exit.ok() && exit->exited ? "code" : "signal",
                                        exit.ok() ? exit->code : -1, EndOfLog());
    {
      MutexLock notes(notes_mu_);
      ++deaths_;
      last_death_ = why;
    }
    (void)Launch({});
  }
  MutexLock lock(mu_);
  process_.reset();
}

}  // namespace cairn::fault
