#include "services/cache/serve/node/identity.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

namespace cairn::cache {

Result<uint64_t> NextEpoch(const std::string& directory) {
  uint64_t epoch = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                             std::chrono::system_clock::now().time_since_epoch())
                                             .count());
  if (directory.empty()) return epoch;
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return Errorf(StatusCode::kFailedPrecondition, "disk.path: cannot make '{}': {}", directory,
                  error.message());
  }
  const std::string path = directory + "/epoch", next = path + ".new";
  if (std::ifstream file(path); file) {
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    uint64_t last = 0;
    const auto [end, error_code] = std::from_chars(text.data(), text.data() + text.size(), last);
    // The largest number has no successor.
    if (error_code != std::errc() || std::string_view(end) != "\n" || last == UINT64_MAX) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "disk.path: '{}' has '{}', expected a number below {}; remove the file if the "
                    "node's clock is right",
                    path, text.substr(0, 40), UINT64_MAX);
    }
    if (last >= epoch) epoch = last + 1;  // The clock went back.
  }
  // Written to another file and renamed: a death in between leaves the old number.
  const int fd = open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const std::string text = fmt::format("{}\n", epoch);
  const bool written = fd >= 0 &&
                       write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       fsync(fd) == 0;
  const int why = errno;
  if (fd >= 0) close(fd);
  if (!written || std::rename(next.c_str(), path.c_str()) != 0) {
    return Errorf(StatusCode::kFailedPrecondition, "disk.path: cannot write '{}': {}", path,
                  std::strerror(written ? errno : why));
  }
  return epoch;
}

}  // namespace cairn::cache
