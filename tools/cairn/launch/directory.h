#pragma once
// The directory of `cairn up`: its state, its logs, and what its nodes keep on disk.

#include <memory>
#include <string>

#include "cairn/common/status.h"
#include "tools/cairn/launch/state.h"
#include "tools/cairn/process/directory_lock.h"

namespace cairn::cli {

// Where `up`, `down` and `top` look without --dir: cairn-up in $XDG_RUNTIME_DIR, or in this user's
// folder below the folder for temporary files, which is made if `make` is set.
Result<std::string> DefaultLaunchDirectory(bool make = true);

// The log of a process that was started there.
inline std::string LaunchLog(const std::string& directory, const std::string& process) {
  return directory + "/" + process + ".log";
}

// Held by one `up` or `down` at a time. Not thread-safe.
class LaunchDirectory {
 public:
  // Makes it if it is missing. FAILED_PRECONDITION: others than this user can write to it, or
  // another `cairn up` or `down` works in it.
  static Result<std::unique_ptr<LaunchDirectory>> Open(const std::string& path);
  // NOT_FOUND when it does not exist.
  static Result<std::unique_ptr<LaunchDirectory>> OpenExisting(const std::string& path);

  const std::string& path() const { return path_; }
  bool made() const { return made_; }
  std::string LogOf(const std::string& process) const { return LaunchLog(path_, process); }
  std::string DataOf(const std::string& node) const { return path_ + "/data/" + node; }
  // Whether nodes have left data here.
  bool HasData() const;

  // As ReadLaunchState.
  Result<LaunchState> ReadState() const;
  // Whole or not at all.
  Status WriteState(const LaunchState& state) const;

  // Removes the state and the logs. Data stays.
  void Forget() const;
  // Forget, and removes the data unless `keep_data`, the lock, and the directory itself if
  // `up` has `made` it and nothing of others is in it. INTERNAL: the data cannot be removed.
  Status Remove(bool made, bool keep_data) const;

 private:
  LaunchDirectory(std::string path, std::unique_ptr<DirectoryLock> lock, bool made)
      : path_(std::move(path)), lock_(std::move(lock)), made_(made) {}
  static Result<std::unique_ptr<LaunchDirectory>> Lock(const std::string& path, bool made);

  const std::string path_;
  const std::unique_ptr<DirectoryLock> lock_;
  const bool made_;
};

// Without the lock. NOT_FOUND: nothing was started there. FAILED_PRECONDITION: the file is not this
// user's. INVALID_ARGUMENT, which names the file: it cannot be read as a state.
Result<LaunchState> ReadLaunchState(const std::string& directory);

}  // namespace cairn::cli
