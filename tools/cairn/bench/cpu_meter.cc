#include "tools/cairn/bench/cpu_meter.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string>

namespace cairn::cli::bench {
namespace {

double TicksPerSecond() { return static_cast<double>(sysconf(_SC_CLK_TCK)); }

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

MachineTime ReadMachineTime() {
  return ParseMachineTime(FirstLine("/proc/stat"), TicksPerSecond());
}

}  // namespace

MachineTime ParseMachineTime(std::string_view line, double ticks_per_second) {
  std::istringstream in{std::string(line)};
  std::string name;
  std::array<double, 8> v{};  // user nice system idle iowait irq softirq steal
  in >> name;
  if (name != "cpu") return {};
  for (double& ticks : v) {
    if (!(in >> ticks)) return {};
  }
  return {.busy = (v[0] + v[1] + v[2]) / ticks_per_second, .stolen = v[7] / ticks_per_second};
}

double ParseProcessTime(std::string_view text, double ticks_per_second) {
  // The second field is the program's name in parentheses and may hold blanks and parentheses.
  const size_t end = text.rfind(')');
  if (end == std::string_view::npos) return 0;
  std::istringstream in{std::string(text.substr(end + 1))};
  std::string skipped;
  for (int field = 3; field < 14; ++field) in >> skipped;
  double user = 0, system = 0;
  if (!(in >> user >> system)) return 0;
  return (user + system) / ticks_per_second;
}

CpuMeter::CpuMeter(std::vector<pid_t> children)
    : children_(std::move(children)),
      start_(std::chrono::steady_clock::now()),
      machine_(ReadMachineTime()),
      own_(OwnSeconds()) {}

double CpuMeter::OwnSeconds() const {
  rusage self{}, reaped{};
  getrusage(RUSAGE_SELF, &self);
  getrusage(RUSAGE_CHILDREN, &reaped);
  double seconds = Seconds(self.ru_utime) + Seconds(self.ru_stime) + Seconds(reaped.ru_utime) +
                   Seconds(reaped.ru_stime);
  for (const pid_t pid : children_) {
    seconds += ParseProcessTime(FirstLine(fmt::format("/proc/{}/stat", pid)), TicksPerSecond());
  }
  return seconds;
}

CpuMeter::Use CpuMeter::Read() const {
  Use use;
  const MachineTime now = ReadMachineTime();
  use.own_seconds = OwnSeconds() - own_;
  use.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double others = std::max(0.0, now.busy - machine_.busy - use.own_seconds) +
                        std::max(0.0, now.stolen - machine_.stolen);
  use.foreign_cores = use.seconds > 0 ? others / use.seconds : 0;
  return use;
}

}  // namespace cairn::cli::bench
