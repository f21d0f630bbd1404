#include "tools/cairn/demo/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tools/cairn/output/json.h"
#include "tools/cairn/output/table.h"
#include "tools/cairn/output/units.h"

namespace cairn::cli {
namespace {

constexpr int kBarWidth = 20;

// The title that people see instead of the short name.
std::string PhaseTitle(const std::string& phase) {
  if (phase == "cold") return "cold: no cache";
  if (phase == "ram") return "ram: same worker";
  if (phase == "other") return "other: second worker";
  if (phase == "cluster") return "cluster: another node has it";
  if (phase == "home-killed") return "home killed: the next node";
  if (phase == "disk") return "disk: node killed, restarted";
  if (phase == "small-arena") return "small arena: a quarter of the data";
  if (phase == "chat") return "chat: turn 2 and later";
  if (phase == "together") return "together: 16 chats at once";
  if (phase == "long") return "long: a long question";
  if (phase == "beyond") return "beyond: more KV than the worker holds";
  return phase;
}

bool HolderDiedInTime(const DemoRow& row) {
  return row.killed && row.killed->node == "holder" && row.killed->during_answer &&
         row.killed->sent_bytes > 0;
}

// With a lossy recipe: what it costs, "int8: 8.27 bits a number".
std::string PhaseTitle(const DemoReport& report, const std::string& phase) {
  for (const DemoRow& row : report.rows) {
    if (row.phase() == phase && row.lossy() && !row.held) {
      return fmt::format("{}: {:.2f} bits a number", phase, row.bits_per_number.value_or(0));
    }
    if (row.phase() == phase && phase == "holder-killed") {
      return HolderDiedInTime(row) ? "holder killed while it answers" : "holder NOT killed in time";
    }
  }
  return PhaseTitle(phase);
}

std::vector<std::string> Phases(const DemoReport& report) {
  std::vector<std::string> phases;
  for (const DemoRow& row : report.rows) {
    if (std::find(phases.begin(), phases.end(), row.phase()) == phases.end()) {
      phases.push_back(row.phase());
    }
  }
  return phases;
}

// A chat's first turn has nothing to reuse, and neither has the long prompt of `beyond`.
bool IsWarm(const DemoRow& row) {
  return row.phase() != "cold" && row.phase() != "beyond" && row.name != "chat/turn1";
}

// How many times faster the first token came than without a cache.
std::optional<double> SpeedUpOf(const DemoRow& row) {
  if (!IsWarm(row) || !row.cold_ttft_s || row.ttft_s <= 0) return std::nullopt;
  return *row.cold_ttft_s / row.ttft_s;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Cell YesNo(bool yes) { return yes ? Cell("yes", Style::kGreen) : Cell("NO", Style::kRed); }
// For a lossy row, whose answer need not be the same to the end.
Cell FirstIds(uint32_t same) {
  return {fmt::format("first {} of {}", same, kComparedTokens),
          same == kComparedTokens ? Style::kGreen : Style::kYellow};
}
Cell Bytes(uint64_t bytes) { return bytes == 0 ? Cell("-", Style::kDim) : Cell(HumanBytes(bytes)); }
// How many of the fetched bytes the worker copied.
Cell Copied(const DemoRow& row) {
  if (row.lent_bytes + row.copied_bytes == 0) return Cell("-", Style::kDim);
  return row.copied_bytes == 0 ? Cell("none", Style::kGreen) : Cell(HumanBytes(row.copied_bytes));
}
// A line; it may be longer than the terminal's.
std::string OneAnswer(const DemoRow& row, const Terminal& terminal) {
  std::string text = row.answer;
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c >= 0 && c < ' '; }, ' ');
  return terminal.Paint(fmt::format("{:<14}", row.name), Style::kDim) + text + "\n";
}
Json KilledJson(const std::optional<KilledNode>& killed) {
  if (!killed) return {};
  return {{"node", killed->node},
          {"during_answer", killed->during_answer},
          {"sent_bytes", killed->sent_bytes}};
}
Json HeldJson(const std::optional<HeldKv>& held) {
  if (!held) return {};
  return {{"prompt_bytes", held->prompt_bytes}, {"pool_bytes", held->pool_bytes},
          {"near_bytes", held->near_bytes},     {"read_bytes", held->read_bytes},
          {"token_s", held->token_s},           {"same_prompt", held->same_prompt}};
}
// "36.4 MiB (20.2 %)" of the prompt's KV.
Cell Part(uint64_t bytes, uint64_t all) {
  if (bytes == 0 || all == 0) return Cell("-", Style::kDim);
  return Cell(fmt::format("{} ({:.1f} %)", HumanBytes(bytes),
                          100.0 * static_cast<double>(bytes) / static_cast<double>(all)));
}
// The full answer over which `row` stands.
bool FullOf(const DemoRow& full, const DemoRow& row) {
  if (row.held) return full.name == row.phase() + "/full";
  return full.phase() == "cold" && full.item() == row.item();
}
Cell Tokens(uint64_t n) { return n == 0 ? Cell("-", Style::kDim) : Cell(Grouped(n)); }
Cell SpeedUp(std::optional<double> ratio) {
  if (!ratio) return Cell("");
  return Cell(Times(*ratio), *ratio >= 1.5 ? Style::kGreen : Style::kPlain);
}

}  // namespace

bool Identical(const Answer& answer, const Answer& reference) {
  return answer.tokens.size() >= kComparedTokens && answer.tokens == reference.tokens &&
         answer.prompt_logits.has_value() && answer.prompt_logits == reference.prompt_logits;
}

uint32_t SameIds(const Answer& answer, const Answer& reference) {
  const auto differ = std::mismatch(answer.tokens.begin(), answer.tokens.end(),
                                    reference.tokens.begin(), reference.tokens.end());
  return static_cast<uint32_t>(differ.first - answer.tokens.begin());
}

std::string ReportJson(const DemoReport& report) {
  Json rows = Json::array();
  for (const DemoRow& row : report.rows) {
    rows.push_back({{"name", row.name},
                    {"prompt_tokens", row.prompt_tokens},
                    {"fetched_tokens", row.fetched_tokens},
                    {"shared_tokens", row.shared_tokens},
                    {"computed_tokens", row.computed_tokens},
                    {"ttft_s", row.ttft_s},
                    {"bytes", row.bytes},
                    {"tiers", {{"host", row.host_bytes}, {"disk", row.disk_bytes}}},
                    {"peer_bytes", row.peer_bytes},
                    {"killed", KilledJson(row.killed)},
                    {"path", row.path},
                    {"lent_bytes", row.lent_bytes},
                    {"copied_bytes", row.copied_bytes},
                    {"identical", row.identical},
                    {"recipe", row.recipe ? Json(*row.recipe) : Json()},
                    {"bits_per_number", row.bits_per_number ? Json(*row.bits_per_number) : Json()},
                    {"answer", row.answer},
                    {"same_ids_as_full", row.same_ids_as_full},
                    {"held", HeldJson(row.held)}});
  }
  return DumpPretty({{"model", report.model},
                     {"machine", report.machine},
                     {"commit", report.commit},
                     {"rows", std::move(rows)}});
}

std::vector<std::string> BrokenPromises(const DemoReport& report) {
  std::vector<std::string> broken;
  if (report.rows.empty()) broken.push_back("nothing was measured");
  for (const DemoRow& row : report.rows) {
    if (!row.identical && !row.lossy()) {
      broken.push_back(
          fmt::format("{}: the answer differs from the one computed without a cache", row.name));
    }
    // When the holder of a prompt died, what had come may be no whole block: blocks travel at once.
    const bool may_be_nothing = row.phase() == "holder-killed";
    if (IsWarm(row) && row.fetched_tokens == 0 && !may_be_nothing) {
      broken.push_back(fmt::format("{}: nothing was fetched, all {} prompt tokens were computed",
                                   row.name, row.prompt_tokens));
    } else if (row.phase() == "disk" && row.disk_bytes == 0) {
      broken.push_back(fmt::format("{}: no byte came from the disk tier", row.name));
    } else if (row.phase() == "cluster" && row.peer_bytes == 0) {
      broken.push_back(fmt::format("{}: no byte came from another node", row.name));
    } else if (row.phase() == "holder-killed" && !HolderDiedInTime(row)) {
      broken.push_back(fmt::format("{}: the holder was not killed while it answered", row.name));
    } else if (row.name == "beyond/rows" && (!row.held || row.held->near_bytes == 0)) {
      broken.push_back(fmt::format("{}: the prompt was not read by rows", row.name));
    } else if (row.held && !row.held->same_prompt) {
      broken.push_back(
          fmt::format("{}: the prompt's logits differ from those of full KV", row.name));
    }
  }
  return broken;
}

std::string RowLine(const DemoRow& row) {
  std::string line =
      fmt::format("{:<19} {:>5} prompt tokens, {:>5} fetched, first token {:>7}", row.name,
                  row.prompt_tokens, row.fetched_tokens, HumanSeconds(row.ttft_s));
  if (row.host_bytes > 0) line += fmt::format(", {} from RAM", HumanBytes(row.host_bytes));
  if (row.disk_bytes > 0) line += fmt::format(", {} from disk", HumanBytes(row.disk_bytes));
  if (row.peer_bytes > 0) {
    line += fmt::format(", {} from other nodes", HumanBytes(row.peer_bytes));
  }
  if (!row.lossy()) return line + (row.identical ? "" : ", ANSWER DIFFERS");
  if (row.same_ids_as_full == kComparedTokens) {
    return line + fmt::format(", all {} tokens as with full KV", kComparedTokens);
  }
  // An approximation, which may choose another token.
  return line + fmt::format(", differs from token {} of {} on, as it may: {}",
                            row.same_ids_as_full + 1, kComparedTokens,
                            row.held ? "only part of the KV is read exactly"
                                     : "its recipe stores less than all of the KV");
}

std::string RenderRows(const DemoReport& report, const Terminal& terminal) {
  Table table({{"row", Align::kLeft},
               {"prompt", Align::kRight},
               {"fetched", Align::kRight},
               {"computed", Align::kRight},
               {"first token", Align::kRight},
               {"", Align::kLeft},
               {"vs cold", Align::kRight},
               {"from RAM", Align::kRight},
               {"from disk", Align::kRight},
               {"from peers", Align::kRight},
               {"copied", Align::kRight},
               {"identical", Align::kLeft}});
  double slowest = 0;
  for (const DemoRow& row : report.rows) slowest = std::max(slowest, row.ttft_s);
  std::string phase;
  for (const DemoRow& row : report.rows) {
    if (!phase.empty() && row.phase() != phase) table.AddRule();
    phase = row.phase();
    const Style bar = IsWarm(row) ? Style::kGreen : Style::kYellow;
    table.AddRow({row.name, Tokens(row.prompt_tokens), Tokens(row.fetched_tokens),
                  Tokens(row.computed_tokens), HumanSeconds(row.ttft_s),
                  Cell(Bar(row.ttft_s, slowest, kBarWidth, terminal), bar), SpeedUp(SpeedUpOf(row)),
                  Bytes(row.host_bytes), Bytes(row.disk_bytes), Bytes(row.peer_bytes), Copied(row),
                  row.lossy() ? FirstIds(row.same_ids_as_full) : YesNo(row.identical)});
  }
  return table.Render(terminal);
}

std::string RenderSummary(const DemoReport& report, const Terminal& terminal) {
  Table table({{"phase", Align::kLeft},
               {"median first token", Align::kRight},
               {"vs cold", Align::kRight},
               {"prompt fetched", Align::kRight},
               {"from RAM", Align::kRight},
               {"from disk", Align::kRight},
               {"from peers", Align::kRight},
               {"identical", Align::kLeft}});
  for (const std::string& phase : Phases(report)) {
    std::vector<double> ttft;
    std::vector<double> ratios;
    uint64_t prompt = 0;
    uint64_t fetched = 0;
    uint64_t host = 0;
    uint64_t disk = 0;
    uint64_t peers = 0;
    int identical = 0;
    int rows = 0;
    bool lossy = false;
    uint32_t same_ids = kComparedTokens;
    for (const DemoRow& row : report.rows) {
      if (row.phase() != phase) continue;
      ++rows;
      identical += row.identical ? 1 : 0;
      lossy = lossy || row.lossy();
      same_ids = std::min(same_ids, row.same_ids_as_full);
      host += row.host_bytes;
      disk += row.disk_bytes;
      peers += row.peer_bytes;
      if (phase == "chat" && !IsWarm(row)) continue;
      ttft.push_back(row.ttft_s);
      prompt += row.prompt_tokens;
      fetched += row.fetched_tokens;
      if (const std::optional<double> ratio = SpeedUpOf(row)) ratios.push_back(*ratio);
    }
    const std::string share = prompt == 0 || fetched == 0
                                  ? "-"
                                  : fmt::format("{:.1f} %", 100.0 * static_cast<double>(fetched) /
                                                                static_cast<double>(prompt));
    table.AddRow({PhaseTitle(report, phase), HumanSeconds(Median(ttft)),
                  SpeedUp(ratios.empty() ? std::nullopt : std::optional(Median(ratios))), share,
                  Bytes(host), Bytes(disk), Bytes(peers),
                  lossy ? FirstIds(same_ids)
                        : Cell(fmt::format("{} of {}", identical, rows),
                               identical == rows ? Style::kGreen : Style::kRed)});
  }
  return table.Render(terminal);
}

std::string RenderHeld(const DemoReport& report, const Terminal& terminal) {
  Table table({{"row", Align::kLeft},
               {"KV of the prompt", Align::kRight},
               {"pages", Align::kRight},
               {"near", Align::kRight},
               {"read", Align::kRight},
               {"first token", Align::kRight},
               {"a token", Align::kRight},
               {"prompt", Align::kLeft},
               {"answer", Align::kLeft}});
  bool any = false;
  for (const DemoRow& row : report.rows) {
    if (!row.held) continue;
    any = true;
    const HeldKv& held = *row.held;
    table.AddRow({row.name, HumanBytes(held.prompt_bytes), Part(held.pool_bytes, held.prompt_bytes),
                  Part(held.near_bytes, held.prompt_bytes), Bytes(held.read_bytes),
                  HumanSeconds(row.ttft_s), HumanSeconds(held.token_s), YesNo(held.same_prompt),
                  FirstIds(row.same_ids_as_full)});
  }
  return any ? table.Render(terminal) : "";
}

std::string RenderAnswers(const DemoReport& report, const Terminal& terminal) {
  std::string out;
  for (const DemoRow& full : report.rows) {
    std::string answers;
    for (const DemoRow& row : report.rows) {
      if (row.lossy() && FullOf(full, row)) answers += OneAnswer(row, terminal);
    }
    if (!answers.empty()) out += OneAnswer(full, terminal) + answers;
  }
  return out;
}

}  // namespace cairn::cli
