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
  std::string text = fmt::format("{:22} {:>6} {:>8} {:>9} {:>10}  {}\n", "recipe", "passes",
                                 "calls", "success", "p99 ms", "findings");
  for (const auto& [name, recipe] : recipes) {
    text += fmt::format("{:22} {:>6} {:>8} {:>8.2f}% {:>10.1f}  {}\n", name, recipe.passes,
                        recipe.calls, recipe.worst_success * 100, recipe.worst_p99_ms,
                        recipe.findings.empty() ? "-" : std::to_string(recipe.findings.size()));
    for (const std::string& note : recipe.notes) text += fmt::format("    {}\n", note);
  }
  text += fmt::format(
      "yardstick: p99 {:.1f} ms, {:.0f} calls/s\n"
      "honest: {} calls ({} over shared memory), {} blocks read, {} wrong\n"
      "livez: {} probes, {} red; deaths of the node: {}; peak memory {} of {} MiB\n",
      yardstick_p99_ms, yardstick_calls_per_second, calls, local_calls, read_blocks, wrong, probes,
      red_probes, deaths, peak_bytes >> 20, account_bytes >> 20);
  for (const std::string& finding : findings) text += "FINDING " + finding + "\n";
  text += fmt::format("{} after {:.0f} s with --seed {}",
                      findings.empty() ? "all is well" : "wrong", seconds, seed);
  return text;
}

std::string Report::Json() const {
  std::string each;
  for (const auto& [name, recipe] : recipes) {
    each += fmt::format(
        "{}{}:{{\"passes\":{},\"rounds\":{},\"calls\":{},\"failed\":{},\"worst_success\":{:.5f},"
        "\"worst_p99_ms\":{:.2f},\"notes\":{},\"findings\":{}}}",
        each.empty() ? "" : ",", Quoted(name), recipe.passes, recipe.rounds, recipe.calls,
        recipe.failed, recipe.worst_success, recipe.worst_p99_ms, List(recipe.notes),
        List(recipe.findings));
  }
  return fmt::format(
      "{{\"seed\":{},\"seconds\":{:.1f},\"yardstick\":{{\"p99_ms\":{:.2f},\"calls_per_second\":{:."
      "1f}"
      "}},\"calls\":{},\"local_calls\":{},\"read_blocks\":{},\"wrong\":{},\"probes\":{},"
      "\"red_probes\":{},\"deaths\":{},\"peak_bytes\":{},\"account_bytes\":{},\"recipes\":{{{}}},"
      "\"findings\":{}}}",
      seed, seconds, yardstick_p99_ms, yardstick_calls_per_second, calls, local_calls, read_blocks,
      wrong, probes, red_probes, deaths, peak_bytes, account_bytes, each, List(findings));
}

}  // namespace cairn::fault
