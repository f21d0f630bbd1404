#include "tests/fault/adversary/foreign_load.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace cairn::fault {
namespace {

double Ticks(double ticks) { return ticks / static_cast<double>(sysconf(_SC_CLK_TCK)); }

double Used(int who) {
  rusage usage{};
  getrusage(who, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Seconds of a child that lives; 0 for other processes. Those of one that has ended are in
// RUSAGE_CHILDREN.
double UsedByChild(const std::filesystem::path& process) {
  std::ifstream file(process / "stat");
  std::string text;
  std::getline(file, text);
  const size_t name = text.rfind(')');  // A name may have spaces and brackets.
  if (name == std::string::npos) return 0;
  std::istringstream fields(text.substr(name + 1));
  std::string state;
  long parent = 0;
  fields >> state >> parent;
  if (parent != getpid()) return 0;
  std::string skipped;
  for (int i = 0; i < 9; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return Ticks(user + system);
}

}  // namespace

ForeignLoad::Seconds ForeignLoad::Read() {
  Seconds now;
  now.own = Used(RUSAGE_SELF) + Used(RUSAGE_CHILDREN);
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    if (std::isdigit(entry.path().filename().string()[0])) now.own += UsedByChild(entry.path());
  }
  std::ifstream file("/proc/stat");
  std::string cpu;
  file >> cpu;
  // user nice system idle iowait irq softirq steal: proc(5).
  for (int i = 0; i < 8; ++i) {
    double ticks = 0;
    file >> ticks;
    now.all += Ticks(ticks);
    if (i != 3 && i != 4) now.busy += Ticks(ticks);
  }
  return now;
}

double ForeignLoad::Take() {
  const Seconds now = Read();
  const double all = now.all - last_.all;
  const double foreign = (now.busy - last_.busy) - (now.own - last_.own);
  last_ = now;
  return all > 0 ? std::clamp(foreign / all, 0.0, 1.0) : 0;
}

}  // namespace cairn::fault
