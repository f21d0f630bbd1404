#include "common/link/nccl/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "common/concurrency/mutex.h"
#include "common/log/log.h"

namespace cairn::link::nccl {
namespace {

Result<Functions> OpenLibrary(const std::string& path) {
  // Local: its symbols must not stand in for those of an engine's own NCCL.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Errorf(StatusCode::kNotFound, "no NCCL: {}", dlerror());
  void* found[kFunctions] = {};
  std::string missing;
  for (size_t i = 0; i < kFunctions; ++i) {
    found[i] = dlsym(library, kFunctionNames[i]);
    if (found[i] != nullptr) continue;
    missing += (missing.empty() ? "" : ", ") + std::string(kFunctionNames[i]);
  }
  Functions functions;
  std::memcpy(&functions, found, sizeof(functions));
  int32_t version = 0;
  // An old one says its version in place of what it lacks.
  const bool answers =
      functions.get_version != nullptr && functions.get_version(&version) == Answer::kSuccess;
  if (answers && version < kOldestVersion) {
    return Errorf(StatusCode::kFailedPrecondition, "{}: got NCCL {}, expected at least {}", path,
                  VersionText(version), VersionText(kOldestVersion));
  }
  if (!missing.empty() || !answers) {
    return Errorf(StatusCode::kFailedPrecondition, "{}: got a library without {}, expected NCCL",
                  path, missing.empty() ? "a version" : missing);
  }
  return functions;
}

}  // namespace

std::string VersionText(int32_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

Result<std::shared_ptr<const Library>> Library::Probe(const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const Functions functions,
                         OpenLibrary(path.empty() ? std::string(kLibrary) : path));
  std::shared_ptr<Library> library(new Library);
  library->functions_ = functions;
  CAIRN_RETURN_IF_ERROR(
      library->ToStatus(functions.get_version(&library->version_), "ncclGetVersion"));
  return library;
}

Result<std::shared_ptr<const Library>> Library::Load(const Options& options) {
  static Mutex* const mu = new Mutex;
  static auto* const known = new std::map<std::string, Result<std::shared_ptr<const Library>>>;
  const std::string path = options.path.empty() ? std::string(kLibrary) : options.path;
  MutexLock lock(*mu);
  const auto it = known->find(path);
  if (it != known->end()) return it->second;
  if (!options.trusted_network) setenv("NCCL_SOCKET_IFNAME", "=lo", /*overwrite=*/1);
  Result<std::shared_ptr<const Library>> library = Probe(path);
  if (!library.ok()) log::Warn("no_nccl", {{"reason", Message(library.status())}});
  return known->emplace(path, std::move(library)).first->second;
}

Status Library::ToStatus(Answer answer, const char* call) const {
  if (answer == Answer::kSuccess || answer == Answer::kInProgress) return OkStatus();
  return Errorf(StatusCode::kInternal, "{}: {}", call, functions_.get_error_string(answer));
}

}  // namespace cairn::link::nccl
