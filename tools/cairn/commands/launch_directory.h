#pragma once
// Which directory `up`, `down` and `top` mean.

#include <filesystem>
#include <string>

#include "tools/cairn/launch/directory.h"

namespace cairn::cli {

// The one that was given, made absolute, or the default one.
inline Result<std::string> LaunchDirectoryOf(const std::string& given) {
  if (given.empty()) return DefaultLaunchDirectory();
  std::error_code error;
  std::string path = std::filesystem::absolute(given, error).lexically_normal();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace cairn::cli
