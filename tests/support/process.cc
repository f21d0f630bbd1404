#include "tests/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/support/etcd_cluster.h"
#include "tests/support/network_namespace.h"

namespace cairn::testing {
namespace {

using SteadyTime = std::chrono::steady_clock;

}  // namespace

std::string LineField(const std::string& line, const std::string& name) {
  const size_t at = line.find(name + "=");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 1;
  return line.substr(begin, line.find(' ', begin) - begin);
}

Result<std::unique_ptr<Process>> Process::Start(const Options& options) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
    return Errorf(StatusCode::kInternal, "pipe: {}", std::strerror(errno));
  }
  std::vector<std::string> arguments = options.argv;
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::vector<std::string> environment;
  for (char** e = environ; *e != nullptr; ++e) environment.emplace_back(*e);
  // exec takes the first of two equal names.
  environment.insert(environment.begin(), options.environment.begin(), options.environment.end());
  std::vector<char*> envp;
  for (std::string& variable : environment) envp.push_back(variable.data());
  envp.push_back(nullptr);

  const int network = options.network == nullptr ? -1 : options.network->fd();
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Errorf(StatusCode::kInternal, "fork: {}", std::strerror(errno));
  if (pid == 0) {
    // Only async-signal-safe calls from here on.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126);
    dup2(out[1], 1);
    dup2(err[1], 2);
    if (network >= 0 && setns(network, CLONE_NEWNET) != 0) _exit(126);
    if (!options.directory.empty() && chdir(options.directory.c_str()) != 0) _exit(126);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  std::unique_ptr<Process> process(new Process());
  process->pid_ = pid;
  process->out_fd_ = out[0];
  process->err_fd_ = err[0];
  fcntl(out[0], F_SETFL, O_NONBLOCK);
  fcntl(err[0], F_SETFL, O_NONBLOCK);
  return process;
}

Process::~Process() {
  Kill();
  if (out_fd_ >= 0) close(out_fd_);
  if (err_fd_ >= 0) close(err_fd_);
}

void Process::Pump(std::chrono::milliseconds wait) {
  // A negative descriptor is ignored.
  pollfd fds[2] = {{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}};
  poll(fds, 2, static_cast<int>(wait.count()));
  const auto drain = [](int* fd, std::string* text) {
    char buffer[65536];
    while (*fd >= 0) {
      const ssize_t n = read(*fd, buffer, sizeof buffer);
      if (n > 0) {
        text->append(buffer, static_cast<size_t>(n));
      } else if (n == 0) {
        close(*fd);
        *fd = -1;
      } else if (errno != EINTR) {
        break;
      }
    }
  };
  drain(&out_fd_, &out_);
  drain(&err_fd_, &err_);
}

Result<std::string> Process::WaitForLine(std::string_view prefix,
                                         std::chrono::milliseconds timeout) {
  const auto deadline = SteadyTime::now() + timeout;
  for (;;) {
    size_t begin = 0;
    for (size_t end = out_.find('\n'); end != std::string::npos; end = out_.find('\n', begin)) {
      const std::string line = out_.substr(begin, end - begin);
      if (line.rfind(prefix, 0) == 0) return line;
      begin = end + 1;
    }
    if (out_fd_ < 0) {
      return Errorf(StatusCode::kUnavailable, "{} ended without '{}'; stderr: {}", pid_, prefix,
                    err());
    }
    if (SteadyTime::now() >= deadline) {
      return Errorf(StatusCode::kDeadlineExceeded, "no line '{}'; stderr: {}", prefix, err());
    }
    Pump(std::chrono::milliseconds(20));
  }
}

void Process::Signal(int signal) {
  if (reaped_) return;
  kill(pid_, signal);
  if (signal != SIGSTOP) return;
  siginfo_t info;
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT) != 0 &&
         errno == EINTR) {
  }
}

bool Process::running() {
  if (!reaped_) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      reaped_ = true;
      status_ = {WIFEXITED(status), WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status)};
    }
  }
  return !reaped_;
}

Result<ExitStatus> Process::WaitExit(std::chrono::milliseconds timeout) {
  const auto deadline = SteadyTime::now() + timeout;
  while (running()) {
    if (SteadyTime::now() >= deadline) {
      return Errorf(StatusCode::kDeadlineExceeded, "{} still runs; stderr: {}", pid_, err());
    }
    Pump(std::chrono::milliseconds(10));
    if (out_fd_ < 0 && err_fd_ < 0) poll(nullptr, 0, 5);  // Both closed: nothing left to wake us.
  }
  Pump(std::chrono::milliseconds(0));
  return status_;
}

void Process::Kill() {
  if (reaped_) return;
  kill(pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
  status_ = {false, SIGKILL};
  Pump(std::chrono::milliseconds(0));
}

const std::string& Process::out() {
  Pump(std::chrono::milliseconds(0));
  return out_;
}

const std::string& Process::err() {
  Pump(std::chrono::milliseconds(0));
  return err_;
}

uint64_t Process::ResidentBytes() const {
  std::ifstream statm(fmt::format("/proc/{}/statm", pid_));
  uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

std::string Binary(std::string_view name) {
  // Tests lie in <build>/tests, programs in <build>/bin.
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path().parent_path() / "bin" / std::string(name)).string();
}

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "cairn-test-XXXXXX").string();
  CAIRN_CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

Result<std::unique_ptr<CacheNode>> CacheNode::Start(const std::vector<std::string>& args) {
  std::vector<std::string> argv = {Binary("cairn-cache"), "--host.capacity", "64MiB",
                                   "--admin.allow_loopback", "true"};
  for (const char* const listen : {"--listen", "--admin.listen"}) {
    if (std::ranges::find(args, listen) != args.end()) continue;
    // Nobody else gets the port while a test starts the node again there.
    argv.insert(argv.end(), {listen, fmt::format("127.0.0.1:{}", FreePort())});
  }
  argv.insert(argv.end(), args.begin(), args.end());
  std::unique_ptr<CacheNode> node(new CacheNode());
  CAIRN_ASSIGN_OR_RETURN(node->process_, Process::Start({.argv = argv}));
  CAIRN_ASSIGN_OR_RETURN(const std::string line,
                         node->process_->WaitForLine("ready ", std::chrono::seconds(120)));
  node->address_ = LineField(line, "grpc");
  node->admin_ = LineField(line, "admin");
  return node;
}

}  // namespace cairn::testing
