#include "common/metrics/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace cairn::metrics {
namespace {

double ReadStartTime() {
  // Field 22 of /proc/self/stat, in ticks since boot; the name in field 2 may hold spaces and
  // brackets.
  std::ifstream stat("/proc/self/stat");
  std::string line;
  std::getline(stat, line);
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  std::ifstream uptime_file("/proc/uptime");
  double uptime = 0;
  uptime_file >> uptime;
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return now - uptime +
         std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

ProcessStats ReadProcessStats() {
  static const double start_time = ReadStartTime();
  ProcessStats stats;
  stats.start_time_seconds = start_time;
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    stats.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  std::ifstream statm("/proc/self/statm");
  uint64_t total_pages = 0, resident_pages = 0;
  if (statm >> total_pages >> resident_pages) {
    stats.resident_bytes = resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  }
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator("/proc/self/fd", error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    ++stats.open_fds;
  }
  if (stats.open_fds > 0) --stats.open_fds;  // The iterator's own.
  return stats;
}

}  // namespace cairn::metrics
