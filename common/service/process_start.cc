#include "common/service/process_start.h"

#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <new>
#include <string_view>
#include <system_error>

#include "absl/synchronization/mutex.h"
#include "common/concurrency/mutex.h"

namespace cairn::service {
namespace {

// Never destroyed: threads that are left may end the process while it ends.
std::string& ProgramName() {
  static std::string& name = *new std::string("cairn");
  return name;
}

void OpenStandardDescriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // A stdout that was closed can only be read: what is written there is not done. Open takes the
    // lowest free number, which is `fd`, and that stays open.
    if (open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR) != fd) return;
  }
}

// Libraries open files in their constructors, which run before main and before constructors of this
// program. A function in this section runs before those, too.
__attribute__((section(".preinit_array"),
               used)) void (*const kOpenFirst)() = OpenStandardDescriptors;

[[noreturn]] void EndWith(const std::string& text) {
  const std::string line = ProgramName() + ": " + text + "\n";
  (void)!write(STDERR_FILENO, line.data(), line.size());
  _exit(1);
}

std::terminate_handler others_handler = nullptr;

// Threads and memory that are refused deep inside of a library, where no Status leads out.
[[noreturn]] void OnTerminate() {
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::resource_unavailable_try_again) {
        EndWith("cannot start a thread: Resource temporarily unavailable; " +
                ThreadAdvice(ReadLimits()));
      }
    } catch (const std::bad_alloc&) {
      EndWith("out of memory: an allocation failed; " + MemoryAdvice(ReadLimits()));
    } catch (...) {
    }
  }
  if (others_handler != nullptr) others_handler();
  std::abort();
}

std::optional<uint64_t> LimitOf(decltype(RLIMIT_AS) what) {
  rlimit limit{};
  if (getrlimit(what, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

// pids.max of this process's group, in either version of control groups.
std::optional<uint64_t> GroupTasks() {
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {  // "0::/path" or "7:pids:/path".
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controller = line.substr(first + 1, second - first - 1);
    if (!controller.empty() && controller != "pids") continue;
    const std::string folder = std::string("/sys/fs/cgroup") + (controller.empty() ? "" : "/pids") +
                               line.substr(second + 1);
    uint64_t most = 0;
    if (std::ifstream(folder + "/pids.max") >> most) return most;
  }
  return std::nullopt;
}

// The numbers N of /dev/fd/N and /proc/self/fd/N in a text.
void AddNamed(std::string_view text, std::vector<int>* named) {
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    for (size_t at = text.find(folder); at != std::string_view::npos;
         at = text.find(folder, at + 1)) {
      const std::string_view number = text.substr(at + folder.size());
      int fd = -1;
      std::from_chars(number.data(), number.data() + number.size(), fd);
      named->push_back(fd);
    }
  }
}

std::vector<int> OpenDescriptors() {
  std::vector<int> open;
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return open;
  while (const dirent* const entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    if (fd > 2 && fd != dirfd(folder)) open.push_back(fd);
  }
  closedir(folder);
  return open;
}

// Threads that wait until they are all there.
class Crowd {
 public:
  ~Crowd() {
    {
      MutexLock lock(mu_);
      may_end_ = true;
    }
    changed_.NotifyAll();
    for (const pthread_t thread : threads_) pthread_join(thread, nullptr);
  }
  // 0, or the error of the thread that was refused.
  int Add() {
    pthread_t thread{};
    const int error = pthread_create(&thread, nullptr, &Crowd::Wait, this);
    if (error == 0) threads_.push_back(thread);
    return error;
  }

 private:
  static void* Wait(void* crowd) {
    auto& self = *static_cast<Crowd*>(crowd);
    MutexLock lock(self.mu_);
    self.changed_.Wait(self.mu_,
                       [&self]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(self.mu_) { return self.may_end_; });
    return nullptr;
  }

  Mutex mu_;
  CondVar changed_;
  bool may_end_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<pthread_t> threads_;
};

}  // namespace

void InitProcess(const std::string& program, int arenas) {
  OpenStandardDescriptors();
  ProgramName() = program;
  others_handler = std::set_terminate(OnTerminate);
  signal(SIGXFSZ, SIG_IGN);
  // By default glibc maps each large buffer again and returns it at once, so each message pays for
  // its page faults: four times the cost of the copy itself.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
  // Threads of gRPC free memory that other threads allocated. With many arenas each arena would
  // keep its own share.
  mallopt(M_ARENA_MAX, arenas);
  // gRPC's own log has another format and would print a dump before our errors. gRPC reads the
  // variable once, when it starts. GRPC_VERBOSITY=DEBUG or ERROR in the environment turns the log
  // on again.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // Debian builds Abseil with its debugging aids. Each lock that gRPC takes is then entered into a
  // graph of waiting threads, under one lock for the whole process.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

std::string MachineName() {
  char name[65] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

void CloseInherited(const std::vector<std::string>& words) {
  std::vector<int> named;
  for (const std::string& word : words) AddNamed(word, &named);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (text.starts_with("CAIRN_")) AddNamed(text, &named);
  }
  for (const int fd : OpenDescriptors()) {
    if (std::find(named.begin(), named.end(), fd) != named.end()) continue;
    // A descriptor that closes itself at exec was opened since: by a library that is preloaded.
    if ((fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0) close(fd);
  }
}

Limits ReadLimits() {
  return {.user_threads = LimitOf(RLIMIT_NPROC),
          .group_tasks = GroupTasks(),
          .address_bytes = LimitOf(RLIMIT_AS),
          .file_bytes = LimitOf(RLIMIT_FSIZE)};
}

std::string ThreadAdvice(const Limits& limits) {
  std::string text = "raise the limit of threads (ulimit -u: ";
  text += limits.user_threads ? std::to_string(*limits.user_threads) : "none";
  text += ", pids.max: ";
  text += limits.group_tasks ? std::to_string(*limits.group_tasks) : "none";
  text += ")";
  if (limits.address_bytes) {
    text += " or of address space (ulimit -v: " + std::to_string(*limits.address_bytes >> 10) + ")";
  }
  return text;
}

std::string MemoryAdvice(const Limits& limits) {
  if (limits.address_bytes) {
    return "raise the limit of address space (ulimit -v: " +
           std::to_string(*limits.address_bytes >> 10) + ")";
  }
  return "give the machine or the control group more memory, or lower the settings that take it";
}

std::string AdviceFor(std::string_view error, const Limits& limits) {
  const auto says = [error](int number) {
    return error.find(std::strerror(number)) != std::string_view::npos;
  };
  if (says(EFBIG) && limits.file_bytes) {
    return "; raise the limit of the size of files (ulimit -f: " +
           std::to_string(*limits.file_bytes >> 10) + ")";
  }
  if (says(ENOMEM) && limits.address_bytes) return "; " + MemoryAdvice(limits);
  return "";
}

Status FlushOutput() {
  const bool failed_before = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !failed_before) return OkStatus();
  return Errorf(StatusCode::kDataLoss, "cannot write all to standard output{}{}",
                failed_before ? "" : ": ", failed_before ? "" : std::strerror(errno));
}

Status CheckThreads(size_t count) {
  Crowd crowd;
  for (size_t started = 0; started < count; ++started) {
    if (const int error = crowd.Add(); error != 0) {
      return Errorf(StatusCode::kResourceExhausted, "threads: got {}, expected at least {}: {}; {}",
                    started, count, std::strerror(error), ThreadAdvice(ReadLimits()));
    }
  }
  return OkStatus();
}

}  // namespace cairn::service
