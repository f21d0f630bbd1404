#include "tools/cairn/process/log_tail.h"

#include <fstream>
#include <sstream>

namespace cairn::cli {

std::string LogTail(const std::string& path) {
  constexpr std::streamoff kBytes = 1500;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const std::streamoff size = file.tellg();
  file.seekg(size > kBytes ? size - kBytes : 0);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace cairn::cli
