#include "tests/fault/adversary/report.h"

#include <fmt/format.h>

namespace cairn::fault {
namespace {

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string List(const std::vector<std::string>& texts) {
  std::string list;
  for (const std::string& text : texts) {
    if (!list.empty()) list += ',';
    list += Quoted(text);
  }
  return fmt::format("[{}]", list);
}

}  // namespace

std::string Report::Text() const {
  std::string text = fmt::format("{:22} {:>6} {:>8} {:>9} {:>6} {:14} {}\n", "recipe", "passes",
                                 "calls", "success", "p99 x", "of", "findings");
  for (const auto& [name, recipe] : recipes) {
    text +=
        fmt::format("{:22} {:>6} {:>8} {:>8.2f}% {:>6.1f} {:14} {}\n", name, recipe.passes,
                    recipe.calls, recipe.worst_success * 100, recipe.worst_p99, recipe.worst_port,
                    recipe.findings.empty() ? "-" : std::to_string(recipe.findings.size()));
    for (const std::string& note : recipe.notes) text += fmt::format("    {}\n", note);
  }
  text += fmt::format("{:14} {:>8} {:>6} {:>13} {:>17} {:>13}\n", "honest at", "calls", "wrong",
                      "yardstick: /s", "p99 ms, yardstick", "worst p99 ms");
  for (const auto& [name, port] : ports) {
    text += fmt::format("{:14} {:>8} {:>6} {:>13.0f} {:>17.1f} {:>13.1f}\n", name, port.calls,
                        port.wrong, port.yardstick_calls_per_second, port.yardstick_p99_ms,
                        port.worst_p99_ms);
  }
  for (const auto& [name, server] : servers) {
    text += fmt::format("{:14} {} deaths, peak memory {} of {} MiB\n", name, server.deaths,
                        server.peak_bytes >> 20, server.account_bytes >> 20);
  }
  text +=
      fmt::format("livez: {} probes, {} red; {} blocks read\n", probes, red_probes, read_blocks);
  if (busy_rounds > 0) {
    text += fmt::format(
        "in {} of {} rounds the machine was busy with other programs: nothing is said about time\n",
        busy_rounds, rounds);
  }
  if (repeated_rounds > 0) {
    text += fmt::format("{} rounds were played again, because honest clients waited too long\n",
                        repeated_rounds);
  }
  for (const std::string& finding : findings) text += "FINDING " + finding + "\n";
  text += fmt::format("{} after {:.0f} s with --seed {}",
                      findings.empty() ? "all is well" : "wrong", seconds, seed);
  return text;
}

std::string Report::Json() const {
  std::string all_recipes, all_ports, all_servers;
  const auto comma = [](const std::string& list) { return list.empty() ? "" : ","; };
  for (const auto& [name, recipe] : recipes) {
    all_recipes += fmt::format(
        R"({}{}:{{"passes":{},"rounds":{},"calls":{},"failed":{},"worst_success":{:.5f},)"
        R"("worst_p99":{:.2f},"worst_port":{},"notes":{},"findings":{}}})",
        comma(all_recipes), Quoted(name), recipe.passes, recipe.rounds, recipe.calls, recipe.failed,
        recipe.worst_success, recipe.worst_p99, Quoted(recipe.worst_port), List(recipe.notes),
        List(recipe.findings));
  }
  for (const auto& [name, port] : ports) {
    all_ports +=
        fmt::format(R"({}{}:{{"calls":{},"wrong":{},"yardstick_calls_per_second":{:.1f},)"
                    R"("yardstick_p99_ms":{:.2f},"worst_p99_ms":{:.2f}}})",
                    comma(all_ports), Quoted(name), port.calls, port.wrong,
                    port.yardstick_calls_per_second, port.yardstick_p99_ms, port.worst_p99_ms);
  }
  for (const auto& [name, server] : servers) {
    all_servers += fmt::format(R"({}{}:{{"deaths":{},"peak_bytes":{},"account_bytes":{}}})",
                               comma(all_servers), Quoted(name), server.deaths, server.peak_bytes,
                               server.account_bytes);
  }
  return fmt::format(R"({{"seed":{},"seconds":{:.1f},"rounds":{},"busy_rounds":{},)"
                     R"("repeated_rounds":{},"read_blocks":{},"probes":{},"red_probes":{},)"
                     R"("ports":{{{}}},"servers":{{{}}},"recipes":{{{}}},"findings":{}}})",
                     seed, seconds, rounds, busy_rounds, repeated_rounds, read_blocks, probes,
                     red_probes, all_ports, all_servers, all_recipes, List(findings));
}

}  // namespace cairn::fault
