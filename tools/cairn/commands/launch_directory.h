#pragma once
// Which directory `up`, `down` and `top` mean.

#include <filesystem>
#include <string>

#include "tools/cairn/launch/directory.h"

namespace cairn::cli {

// The help text of --dir.
inline constexpr char kLaunchDirectoryHelp[] =
    "Directory of state, logs and data; default: cairn-up in $XDG_RUNTIME_DIR, or in this user's "
    "folder below the folder for temporary files";

// The one that was given, made absolute, or the default one.
inline Result<std::string> LaunchDirectoryOf(const std::string& given) {
  if (given.empty()) return DefaultLaunchDirectory();
  std::error_code error;
  std::string path = std::filesystem::absolute(given, error).lexically_normal();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace cairn::cli
