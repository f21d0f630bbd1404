#include "tools/cairn/bench/report.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "common/config/config.h"
#include "common/config/version.h"
#include "tools/cairn/bench/statistics.h"
#include "tools/cairn/output/table.h"
#include "tools/cairn/output/units.h"

namespace cairn::cli::bench {
namespace {

std::string FirstValue(const char* path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const size_t at = line.find_first_not_of(": \t", key.size());
    return at == std::string::npos ? "" : line.substr(at);
  }
  return "";
}

// Three digits, thousands grouped.
std::string Number(double value) {
  if (value >= 1000) return Grouped(static_cast<uint64_t>(std::llround(value)));
  return fmt::format("{:.3g}", value);
}

Json Samples(const std::vector<double>& samples) {
  const Summary s = Summarize(samples);
  return {{"median", s.median},
          {"min", s.min},
          {"max", s.max},
          {"spread", s.spread},
          {"samples", samples}};
}

std::string SpinText(const BenchOptions& o) {
  if (!o.spin) return "auto";
  return fmt::format("{}us",
                     std::chrono::duration_cast<std::chrono::microseconds>(*o.spin).count());
}

Json OptionsJson(const BenchOptions& o) {
  static constexpr const char* kPaths[] = {"auto", "grpc", "local"};
  return {
      {"spin", SpinText(o)},  {"cache", o.cache},     {"size", o.block_bytes},
      {"data", o.data_bytes}, {"layers", o.layers},   {"batch", o.batch},
      {"depth", o.depth},     {"clients", o.clients}, {"path", kPaths[static_cast<size_t>(o.path)]},
      {"seconds", o.seconds}, {"repeat", o.repeat},   {"verify", o.verify},
      {"lookup", o.lookup},   {"lease", o.lease},     {"lent", o.lent}};
}

}  // namespace

std::vector<std::pair<std::string, std::string>> MachineFacts() {
  utsname kernel{};
  uname(&kernel);
  const auto memory =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::string congestion_control;
  std::ifstream("/proc/sys/net/ipv4/tcp_congestion_control") >> congestion_control;
  return {{"cpu", FirstValue("/proc/cpuinfo", "model name")},
          {"cores", std::to_string(sysconf(_SC_NPROCESSORS_ONLN))},
          {"memory", HumanBytes(memory)},
          {"kernel", std::string(kernel.sysname) + " " + kernel.release},
          {"tcp_congestion_control", congestion_control},
          {"version", std::string(CAIRN_VERSION) + " (" + CAIRN_REVISION + ")"}};
}

Json ToJson(const Report& report) {
  Json facts = Json::object();
  for (const auto& [name, value] : report.facts) facts[name] = value;
  Json yardsticks = Json::object();
  for (size_t i = 0; i < report.trials.yardsticks.size(); ++i) {
    const Trials::Series& series = report.trials.yardsticks[i];
    Json one = {{"what", report.yardsticks[i].second}, {"unit", series.unit}};
    one.update(Samples(series.samples));
    yardsticks[series.name] = std::move(one);
  }
  Json metrics = Json::object();
  for (const Trials::Series& series : report.trials.metrics) {
    Json one = {{"unit", series.unit}};
    one.update(Samples(series.samples));
    // Only what has the yardsticks' unit can be divided by them.
    if (series.unit == "GB/s") {
      for (const Trials::Series& yardstick : report.trials.yardsticks) {
        one["x_" + yardstick.name] = Samples(Ratios(series.samples, yardstick.samples));
      }
    }
    metrics[series.name] = std::move(one);
  }
  return {{"workload", std::string(Name(report.options.workload))},
          {"options", OptionsJson(report.options)},
          {"facts", std::move(facts)},
          {"trials", report.trials.foreign_cores.size()},
          {"dropped_trials", report.trials.dropped},
          {"noisy", report.trials.noisy},
          {"foreign_cores", report.trials.foreign_cores},
          {"yardsticks", std::move(yardsticks)},
          {"metrics", std::move(metrics)}};
}

std::string ToText(const Report& report, const Terminal& terminal) {
  const BenchOptions& o = report.options;
  std::vector<Table::Column> columns = {{.title = std::string(Name(o.workload))},
                                        {.title = "median", .align = Align::kRight},
                                        {.title = "unit"},
                                        {.title = "min", .align = Align::kRight},
                                        {.title = "max", .align = Align::kRight},
                                        {.title = "spread", .align = Align::kRight}};
  for (const Trials::Series& yardstick : report.trials.yardsticks) {
    columns.push_back({.title = "x " + yardstick.name, .align = Align::kRight});
  }
  Table table(std::move(columns));
  const auto add = [&](const Trials::Series& series, bool ratios) {
    const Summary s = Summarize(series.samples);
    std::vector<Cell> cells = {series.name,   Number(s.median),
                               series.unit,   Number(s.min),
                               Number(s.max), fmt::format("{:.0f} %", s.spread * 100)};
    if (ratios && series.unit == "GB/s") {
      for (const Trials::Series& yardstick : report.trials.yardsticks) {
        cells.emplace_back(fmt::format("{:.3f}", Median(Ratios(series.samples, yardstick.samples))),
                           Style::kBold);
      }
    }
    table.AddRow(std::move(cells));
  };
  for (const Trials::Series& series : report.trials.metrics) add(series, true);
  table.AddRule();
  for (const Trials::Series& series : report.trials.yardsticks) add(series, false);

  std::string out = fmt::format(
      "{}: {} a block, {} a call, {} in flight, {} client{}{}{}; {} trials of {:.3g} s\n",
      Name(o.workload), HumanBytes(o.block_bytes), o.batch, o.depth, o.clients,
      o.clients == 1 ? "" : "s", o.verify ? "" : ", NOT VERIFIED",
      o.spin ? ", spinning for " + SpinText(o) : "", report.trials.foreign_cores.size(), o.seconds);
  out += table.Render(terminal);
  for (const auto& [name, what] : report.yardsticks) out += fmt::format("{}: {}\n", name, what);
  for (const auto& [name, value] : report.facts) out += fmt::format("{}: {}\n", name, value);
  if (report.trials.dropped > 0) {
    out += fmt::format("{} trials dropped, others used the machine\n", report.trials.dropped);
  }
  if (report.trials.noisy) {
    out += terminal.Paint(
        "NOISY: too few trials had the machine to themselves; these numbers mean little\n",
        Style::kYellow);
  }
  return out;
}

}  // namespace cairn::cli::bench
