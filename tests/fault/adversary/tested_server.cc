#include "tests/fault/adversary/tested_server.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "tests/support/etcd_cluster.h"
#include "tests/support/process.h"

namespace cairn::fault {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::LineField;

constexpr size_t kLogBytes = 16 << 10;
// Clients need a moment until they are connected again.
constexpr Duration kComeBack = seconds(2);

TimePoint Now() { return SteadyClock::Get().Now(); }

}  // namespace

Result<std::unique_ptr<TestedServer>> TestedServer::Start(const Options& options) {
  std::unique_ptr<TestedServer> server(new TestedServer(options));
  int log[2];
  if (pipe2(log, O_CLOEXEC | O_NONBLOCK) != 0) {
    return Errorf(StatusCode::kInternal, "pipe: no descriptors");
  }
  server->log_read_ = log[0];
  server->log_write_ = log[1];
  // The child keeps this end, and opens it again as its stderr, without O_NONBLOCK.
  fcntl(server->log_write_, F_SETFD, 0);
  server->log_reader_ = std::thread([raw = server.get()] { raw->ReadLog(); });
  server->keeper_ = std::thread([raw = server.get()] { raw->Keep(); });
  CAIRN_RETURN_IF_ERROR(server->InKeeper([raw = server.get()] {
    MutexLock lock(raw->mu_);
    return raw->Launch({});
  }));
  return server;
}

TestedServer::~TestedServer() {
  done_.store(true);
  if (keeper_.joinable()) keeper_.join();
  if (log_reader_.joinable()) log_reader_.join();
  if (log_read_ >= 0) close(log_read_);
  if (log_write_ >= 0) close(log_write_);
}

Status TestedServer::Launch(const std::vector<std::string>& more_args) {
  // The shell sets the limits, and becomes the program.
  const std::string script =
      fmt::format("ulimit -v {}; ulimit -n {}; exec \"$@\" 2>/dev/fd/{}",
                  options_.address_space_bytes / 1024, options_.descriptors, log_write_);
  // Ports that nobody else gets while it starts again there.
  const auto anywhere = [] { return fmt::format("127.0.0.1:{}", testing::FreePort()); };
  const std::string listen = address_.empty() ? anywhere() : address_;
  const std::string admin = admin_.empty() ? anywhere() : admin_;
  std::vector<std::string> argv = {
      "/bin/sh",  "-c",   script,           "sh", testing::Binary(options_.program),
      "--listen", listen, "--admin.listen", admin};
  argv.insert(argv.end(), options_.args.begin(), options_.args.end());
  argv.insert(argv.end(), more_args.begin(), more_args.end());
  CAIRN_ASSIGN_OR_RETURN(process_, testing::Process::Start({.argv = argv}));
  pid_.store(process_->pid());
  const auto line = process_->WaitForLine("ready ", seconds(120));
  if (!line.ok()) return Annotate(line.status(), EndOfLog());
  if (admin_.empty()) {  // Others read them without a lock, and they stay what they are.
    address_ = LineField(*line, "grpc");
    admin_ = LineField(*line, "admin");
  }
  return OkStatus();
}

Status TestedServer::End(bool kill) {
  Measure();
  if (kill) {
    process_->Kill();
    return OkStatus();
  }
  process_->Signal(SIGTERM);
  CAIRN_ASSIGN_OR_RETURN(const testing::ExitStatus exit, process_->WaitExit(seconds(120)));
  if (exit.exited && exit.code == 0) return OkStatus();
  return Errorf(StatusCode::kInternal, "after SIGTERM {} ended with {} {}", options_.program,
                exit.exited ? "code" : "signal", exit.code);
}

Status TestedServer::InKeeper(std::function<Status()> job) {
  MutexLock caller(callers_mu_);
  MutexLock lock(jobs_mu_);
  job_ = std::move(job);
  job_done_ = false;
  jobs_changed_.Wait(jobs_mu_,
                     [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(jobs_mu_) { return job_done_; });
  return job_result_;
}

Status TestedServer::Restart(bool kill, const std::vector<std::string>& more_args) {
  return InKeeper([this, kill, &more_args] {
    MutexLock lock(mu_);
    return RestartNow(kill, more_args);
  });
}

Status TestedServer::RestartNow(bool kill, const std::vector<std::string>& more_args) {
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

Status TestedServer::Stop() {
  return InKeeper([this] {
    MutexLock lock(mu_);
    const Status ended = End(/*kill=*/false);
    done_.store(true);
    return ended;
  });
}

bool TestedServer::WasAwayOnPurpose(TimePoint begin, TimePoint end) const {
  MutexLock lock(notes_mu_);
  return std::any_of(away_.begin(), away_.end(),
                     [&](const Away& away) { return begin <= away.end && away.begin <= end; });
}

uint64_t TestedServer::deaths() const {
  MutexLock lock(notes_mu_);
  return deaths_;
}

std::string TestedServer::last_death() const {
  MutexLock lock(notes_mu_);
  return last_death_;
}

uint64_t TestedServer::open_descriptors() const {
  uint64_t count = 0;
  DIR* folder = opendir(fmt::format("/proc/{}/fd", pid_.load()).c_str());
  if (folder == nullptr) return 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count < 2 ? 0 : count - 2;
}

void TestedServer::Measure() {
  std::ifstream status(fmt::format("/proc/{}/status", process_->pid()));
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) != 0) continue;
    const uint64_t bytes = std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
    peak_bytes_.store(std::max(peak_bytes_.load(), bytes));
  }
}

void TestedServer::ReadLog() {
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

std::string TestedServer::EndOfLog() const {
  MutexLock lock(notes_mu_);
  std::string end = log_.substr(log_.size() - std::min<size_t>(log_.size(), 300));
  std::replace(end.begin(), end.end(), '\n', ' ');
  return "..." + end;
}

void TestedServer::Keep() {
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
