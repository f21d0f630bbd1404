#pragma once
// Real processes in tests: start, wait until they say that they are ready, stop them in every way
// there is.

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::testing {

class NetworkNamespace;

struct ExitStatus {
  bool exited = false;  // By itself; else by a signal.
  int code = 0;         // Exit code or signal number.
};

// One child process. Its stdout and stderr are kept; it dies by SIGKILL with this object, with this
// process, and with the thread that started it. Not thread-safe.
class Process {
 public:
  struct Options {
    std::vector<std::string> argv;              // argv[0] is a path.
    std::vector<std::string> environment = {};  // "NAME=value", in addition to this process's own.
    std::string directory = {};                 // Working directory; empty: this one's.
    const NetworkNamespace* network = nullptr;  // network_lab.h. nullptr: this thread's.
  };
  static Result<std::unique_ptr<Process>> Start(const Options& options);
  ~Process();

  pid_t pid() const { return pid_; }
  // The first line of stdout that starts with `prefix`, without its end of line. DEADLINE_EXCEEDED,
  // or UNAVAILABLE when the process ended first; both with what it wrote to stderr.
  Result<std::string> WaitForLine(std::string_view prefix, std::chrono::milliseconds timeout);
  // SIGKILL, SIGSTOP, SIGCONT, SIGTERM, ... After SIGSTOP none of its threads runs any more.
  void Signal(int signal);
  // DEADLINE_EXCEEDED when it still runs then.
  Result<ExitStatus> WaitExit(std::chrono::milliseconds timeout);
  // SIGKILL and wait.
  void Kill();
  bool running();
  // The text that was read so far; all of it after WaitExit.
  const std::string& out();
  const std::string& err();
  uint64_t ResidentBytes() const;

 private:
  Process() = default;
  void Pump(std::chrono::milliseconds wait);
  pid_t pid_ = -1;
  int out_fd_ = -1, err_fd_ = -1;
  std::string out_, err_;
  bool reaped_ = false;
  ExitStatus status_;
};

// Where a server of a test listens: here, or in a machine of a network (network_lab.h).
struct ServerPlace {
  std::string address = "127.0.0.1";
  // The namespace of Process::Options. It outlives the server.
  const NetworkNamespace* network = nullptr;
};

// The text of the field in a line such as "ready grpc=127.0.0.1:7400 admin=...". Empty: none.
std::string LineField(const std::string& line, const std::string& name);

// Path of a binary of this build: Binary("cairn-cache").
std::string Binary(std::string_view name);

// A directory that is removed with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A running cairn-cache with free ports on loopback.
class CacheNode {
 public:
  // `args` are added to host.capacity 64MiB and admin.allow_loopback (later ones win), and to
  // --listen and --admin.listen on loopback unless they name them. These ports are of FreePort()
  // (etcd_cluster.h).
  static Result<std::unique_ptr<CacheNode>> Start(const std::vector<std::string>& args);
  Process& process() { return *process_; }
  const std::string& address() const { return address_; }  // gRPC, "127.0.0.1:PORT".
  const std::string& admin() const { return admin_; }      // HTTP, "127.0.0.1:PORT".

 private:
  std::unique_ptr<Process> process_;
  std::string address_, admin_;
};

}  // namespace cairn::testing
