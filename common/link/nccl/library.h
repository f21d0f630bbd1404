#pragma once
// NCCL, loaded at run time. No program links it; one that asks for it is told once what is missing.

#include <memory>
#include <string>

#include "cairn/common/status.h"
#include "common/link/nccl/functions.h"

namespace cairn::link::nccl {

// The name that Load looks for when it is given no path.
inline constexpr char kLibrary[] = "libnccl.so.2";

// Immutable, so thread-safe. It stays loaded until the process ends.
class Library {
 public:
  struct Options {
    std::string path = {};  // "": kLibrary, where the linker looks.
    // Else NCCL's own sockets, which nothing encrypts, are kept on loopback, by NCCL_SOCKET_IFNAME
    // of the environment.
    bool trusted_network = false;
  };
  // NOT_FOUND: no such library. FAILED_PRECONDITION: it lacks a function, or is older than
  // kOldestVersion. The first failure of each path is logged too; later calls return it without a
  // log line. It may change the environment, so call it before there are other threads.
  static Result<std::shared_ptr<const Library>> Load(const Options& options);
  // As Load, but it logs nothing, remembers nothing and leaves the environment alone: to see what
  // there is.
  static Result<std::shared_ptr<const Library>> Probe(const std::string& path);

  int32_t version() const { return version_; }
  const Functions& functions() const { return functions_; }
  // OK, also while it is in progress. INTERNAL, with `call` and NCCL's words.
  Status ToStatus(Answer answer, const char* call) const;

 private:
  Library() = default;

  Functions functions_;
  int32_t version_ = 0;
};

// "2.29.2".
std::string VersionText(int32_t version);

}  // namespace cairn::link::nccl
