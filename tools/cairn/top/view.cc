#include "tools/cairn/top/view.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <span>
#include <vector>

#include "tools/cairn/cluster/figures.h"
#include "tools/cairn/output/table.h"
#include "tools/cairn/output/units.h"

namespace cairn::cli {
namespace {

constexpr char kUnknown[] = "-";

std::string Share(std::optional<double> share) {
  return share ? fmt::format("{:.0f} %", 100 * *share) : kUnknown;
}

std::optional<double> PartOf(uint64_t part, uint64_t whole) {
  if (whole == 0) return std::nullopt;
  return static_cast<double>(part) / static_cast<double>(whole);
}

std::string BytesPerSecond(double rate) {
  return HumanBytes(static_cast<uint64_t>(rate + 0.5)) + "/s";
}

// "128 MiB (25 %)".
std::string Fill(const client::NodeStats& stats, TierKind kind) {
  const client::TierStat* const tier = TierOf(stats, kind);
  if (tier == nullptr) return kUnknown;
  return fmt::format("{} ({})", HumanBytes(tier->used_bytes),
                     Share(PartOf(tier->used_bytes, tier->capacity_bytes)));
}

Cell Away() { return Cell("away", Style::kRed); }

// Below a table: reasons are longer than columns.
std::string WhyAway(const std::string& name, const Status& status) {
  return fmt::format("{} is away: {}\n", name, Message(status));
}

std::string Nodes(const Snapshot* before, const Snapshot& now, const Terminal& terminal) {
  Table table({{"node", Align::kLeft},
               {"RAM", Align::kRight},
               {"disk", Align::kRight},
               {"hits", Align::kRight},
               {"now", Align::kRight},
               {"sent", Align::kRight},
               {"taken", Align::kRight},
               {"from peers", Align::kRight}});
  std::string reasons;
  for (const SurveyedNode& node : now.nodes) {
    if (!node.stats) {
      table.AddRow({NameOf(node), Away()});
      reasons += WhyAway(NameOf(node), node.status);
      continue;
    }
    const client::NodeStats& stats = *node.stats;
    const auto rates = RatesOf(before, now, node);
    table.AddRow({NameOf(node), Fill(stats, TierKind::kHost), Fill(stats, TierKind::kDisk),
                  Share(HitShare(stats.matched_tokens, stats.missed_tokens)),
                  rates ? Share(HitShare(rates->matched_tokens, rates->missed_tokens)) : kUnknown,
                  rates ? BytesPerSecond(rates->to_workers) : kUnknown,
                  rates ? BytesPerSecond(rates->from_workers) : kUnknown,
                  rates ? BytesPerSecond(rates->from_peers) : kUnknown});
  }
  return table.Render(terminal) + reasons;
}

std::string Workers(const Snapshot& now, const Terminal& terminal) {
  Table table({{"worker", Align::kLeft},
               {"waiting", Align::kRight},
               {"batch", Align::kRight},
               {"parked", Align::kRight},
               {"free pages", Align::kRight},
               {"prefill", Align::kRight},
               {"tokens/s", Align::kRight},
               {"node", Align::kLeft}});
  std::string reasons;
  for (const SampledWorker& worker : now.workers) {
    if (!worker.status.ok()) {
      table.AddRow({worker.name, Away()});
      reasons += WhyAway(worker.name, worker.status);
      continue;
    }
    const WorkerLoad& load = worker.load;
    const Cell cache = load.cache_address.empty() ? Cell("none")
                       : load.cache_connected     ? Cell(load.cache_address)
                                                  : Away();
    table.AddRow(
        {load.draining ? worker.name + ", draining" : worker.name, Grouped(load.queued_requests),
         fmt::format("{} + {}", load.running_prompts, load.running_decodes), Grouped(load.parked),
         fmt::format("{} ({})", Grouped(load.kv_pages_free),
                     Share(PartOf(load.kv_pages_free, load.kv_pages_total))),
         HumanSeconds(load.prefill_seconds),
         load.prefill_tokens_per_second > 0 ? fmt::format("{:.0f}", load.prefill_tokens_per_second)
                                            : kUnknown,
         cache});
  }
  return table.Render(terminal) + reasons;
}

std::string Router(const SampledRouter& router, const Terminal& terminal) {
  if (!router.status.ok()) return WhyAway("router", router.status);
  const RouterView& view = router.view;
  if (!view.waiting.empty()) {
    return terminal.Paint("router waits: " + view.waiting, Style::kRed) + "\n";
  }
  Table table({{"router", Align::kLeft},
               {"workers", Align::kRight},
               {"requests/s", Align::kRight},
               {"use", Align::kRight},
               {"active", Align::kRight},
               {"done", Align::kRight},
               {"shed", Align::kRight},
               {"cached", Align::kRight},
               {"index", Align::kRight}});
  table.AddRow({view.policy, fmt::format("{} of {}", view.ready_workers, view.workers),
                fmt::format("{:.2f}", view.arrivals_per_second), Share(view.use),
                Grouped(view.requests_active), Grouped(view.requests_completed),
                Grouped(view.requests_shed), Share(PartOf(view.cached_tokens, view.prompt_tokens)),
                HumanBytes(view.index_bytes)});
  return table.Render(terminal);
}

std::string Clock(double unix_seconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<time_t>(unix_seconds)));
}

std::string InPercent(std::optional<double> share) {
  return share ? fmt::format("{:.1f}", 100 * *share) : kUnknown;
}

// Off a terminal: names and units of the columns, and how wide they are. A value that is wider
// moves the rest of its row, which still has as many words.
struct LineColumn {
  const char* title;
  int width;
};
constexpr char kLineStart[] = "{:<20}  {:<6}  {:<15}";
constexpr LineColumn kNodeColumns[] = {
    {"RAM_used[B]", 15},     {"RAM_size[B]", 15}, {"disk_used[B]", 15}, {"disk_size[B]", 15},
    {"hits[%]", 7},          {"now[%]", 6},       {"sent[B/s]", 12},    {"taken[B/s]", 12},
    {"from_peers[B/s]", 15}, {"leases", 6}};
constexpr LineColumn kWorkerColumns[] = {
    {"waiting", 7},      {"prompts", 7},     {"decodes", 7},     {"parked", 6},
    {"free[pages]", 11}, {"all[pages]", 10}, {"prefill[s]", 10}, {"prompt[tokens/s]", 16},
    {"draining", 8},     {"cache", 5}};
constexpr LineColumn kRouterColumns[] = {{"workers", 7}, {"ready", 5},     {"arrivals[1/s]", 13},
                                         {"use[%]", 6},  {"active", 6},    {"done", 8},
                                         {"shed", 6},    {"cached[%]", 9}, {"index[B]", 12}};

// A row, or the titles. As many words as columns.
std::string WordsRow(const std::string& time, const char* kind, const std::string& name,
                     std::span<const LineColumn> columns, const std::vector<std::string>& words) {
  std::string line = fmt::format(kLineStart, time, kind, name);
  for (size_t i = 0; i < columns.size(); ++i) {
    line += fmt::format("  {:>{}}", words[i], columns[i].width);
  }
  return line + "\n";
}

std::string Titles(const char* kind, std::span<const LineColumn> columns) {
  std::vector<std::string> words;
  for (const LineColumn& column : columns) words.emplace_back(column.title);
  return WordsRow("# time", kind, "name", columns, words);
}

std::string AwayLine(const std::string& time, const char* kind, const std::string& name,
                     const Status& status) {
  return fmt::format(kLineStart, time, kind, name) + "  away: " + Message(status) + "\n";
}

std::vector<std::string> NodeWords(const Snapshot* before, const Snapshot& now,
                                   const SurveyedNode& node) {
  const client::NodeStats& stats = *node.stats;
  std::vector<std::string> words;
  for (const TierKind kind : {TierKind::kHost, TierKind::kDisk}) {
    const client::TierStat* const tier = TierOf(stats, kind);
    words.push_back(tier == nullptr ? kUnknown : std::to_string(tier->used_bytes));
    words.push_back(tier == nullptr ? kUnknown : std::to_string(tier->capacity_bytes));
  }
  const auto rates = RatesOf(before, now, node);
  const auto rate = [&](double NodeRates::*field) {
    return rates ? fmt::format("{:.0f}", (*rates).*field) : kUnknown;
  };
  words.push_back(InPercent(HitShare(stats.matched_tokens, stats.missed_tokens)));
  words.push_back(rates ? InPercent(HitShare(rates->matched_tokens, rates->missed_tokens))
                        : kUnknown);
  words.push_back(rate(&NodeRates::to_workers));
  words.push_back(rate(&NodeRates::from_workers));
  words.push_back(rate(&NodeRates::from_peers));
  words.push_back(std::to_string(stats.leases));
  return words;
}

std::vector<std::string> WorkerWords(const WorkerLoad& load) {
  return {std::to_string(load.queued_requests),
          std::to_string(load.running_prompts),
          std::to_string(load.running_decodes),
          std::to_string(load.parked),
          std::to_string(load.kv_pages_free),
          std::to_string(load.kv_pages_total),
          fmt::format("{:.3f}", load.prefill_seconds),
          load.prefill_tokens_per_second > 0 ? fmt::format("{:.0f}", load.prefill_tokens_per_second)
                                             : kUnknown,
          load.draining ? "yes" : "no",
          load.cache_address.empty() ? "none"
          : load.cache_connected     ? "yes"
                                     : "away"};
}

std::vector<std::string> RouterWords(const RouterView& view) {
  return {std::to_string(view.workers),
          std::to_string(view.ready_workers),
          fmt::format("{:.2f}", view.arrivals_per_second),
          InPercent(view.use),
          std::to_string(view.requests_active),
          std::to_string(view.requests_completed),
          std::to_string(view.requests_shed),
          InPercent(PartOf(view.cached_tokens, view.prompt_tokens)),
          std::to_string(view.index_bytes)};
}

Json OrNull(std::optional<double> value) { return value ? Json(*value) : Json(); }

Json NodeJson(const Snapshot* before, const Snapshot& now, const SurveyedNode& node) {
  Json json = {{"name", NameOf(node)}, {"address", node.address}, {"away", !node.stats}};
  if (!node.stats) {
    json["error"] = Message(node.status);
    return json;
  }
  const client::NodeStats& stats = *node.stats;
  const auto rates = RatesOf(before, now, node);
  const auto rate = [&](double NodeRates::*field) {
    return rates ? Json((*rates).*field) : Json();
  };
  json["draining"] = stats.draining;
  json["tiers"] = TierFillJson(stats);
  json["hit_share"] = OrNull(HitShare(stats.matched_tokens, stats.missed_tokens));
  json["hit_share_now"] =
      rates ? OrNull(HitShare(rates->matched_tokens, rates->missed_tokens)) : Json();
  json["to_workers_bytes_per_s"] = rate(&NodeRates::to_workers);
  json["from_workers_bytes_per_s"] = rate(&NodeRates::from_workers);
  json["from_peers_bytes_per_s"] = rate(&NodeRates::from_peers);
  json["leases"] = stats.leases;
  return json;
}

Json WorkerJson(const SampledWorker& worker) {
  Json json = {{"name", worker.name}, {"address", worker.address}, {"away", !worker.status.ok()}};
  if (!worker.status.ok()) {
    json["error"] = Message(worker.status);
    return json;
  }
  const WorkerLoad& load = worker.load;
  json.update({{"model", load.model},
               {"waiting", load.queued_requests},
               {"running_prompts", load.running_prompts},
               {"running_decodes", load.running_decodes},
               {"parked", load.parked},
               {"kv_pages_free", load.kv_pages_free},
               {"kv_pages_total", load.kv_pages_total},
               {"prefill_seconds", load.prefill_seconds},
               {"prefill_tokens_per_second", load.prefill_tokens_per_second},
               {"step_seconds", load.step_seconds},
               {"draining", load.draining},
               {"cache_address", load.cache_address},
               {"cache_connected", load.cache_connected}});
  return json;
}

Json RouterJson(const SampledRouter& router) {
  Json json = {{"address", router.address}, {"away", !router.status.ok()}};
  if (!router.status.ok()) {
    json["error"] = Message(router.status);
    return json;
  }
  const RouterView& view = router.view;
  json.update({{"model", view.model},
               {"policy", view.policy},
               {"waiting", view.waiting},
               {"workers", view.workers},
               {"ready_workers", view.ready_workers},
               {"arrivals_per_second", view.arrivals_per_second},
               {"use", view.use},
               {"requests_active", view.requests_active},
               {"requests_completed", view.requests_completed},
               {"requests_shed", view.requests_shed},
               {"prompt_tokens", view.prompt_tokens},
               {"cached_tokens", view.cached_tokens},
               {"index_entries", view.index_entries},
               {"index_bytes", view.index_bytes},
               {"index_members", view.index_members}});
  return json;
}

}  // namespace

std::string TopText(const Snapshot* before, const Snapshot& now, const Terminal& terminal) {
  std::string text = Clock(now.unix_seconds) + "\n";
  if (!now.nodes.empty()) text += Nodes(before, now, terminal);
  if (!now.workers.empty()) text += Workers(now, terminal);
  if (now.router) text += Router(*now.router, terminal);
  return text;
}

std::string TopHeader(const Snapshot& now) {
  std::string text = "# One row for each process and look. '-': not known.\n";
  if (!now.nodes.empty()) {
    text +=
        "# Nodes: hits, of the tokens that workers asked for, since the node's start. now, sent, "
        "taken (to and from workers), from_peers: since the look before.\n";
    text += Titles("node", kNodeColumns);
  }
  if (!now.workers.empty()) {
    text +=
        "# Workers: requests by what they do. prefill: until all prompts are computed. cache: "
        "whether it has a session with its node.\n";
    text += Titles("worker", kWorkerColumns);
  }
  if (now.router) {
    text +=
        "# Router: use, of the last minute in which workers had prompts to compute. cached, of the "
        "prompt tokens.\n";
    text += Titles("router", kRouterColumns);
  }
  return text;
}

std::string TopLines(const Snapshot* before, const Snapshot& now) {
  const std::string time = Clock(now.unix_seconds);
  std::string text;
  for (const SurveyedNode& node : now.nodes) {
    text += node.stats
                ? WordsRow(time, "node", NameOf(node), kNodeColumns, NodeWords(before, now, node))
                : AwayLine(time, "node", NameOf(node), node.status);
  }
  for (const SampledWorker& worker : now.workers) {
    text += worker.status.ok()
                ? WordsRow(time, "worker", worker.name, kWorkerColumns, WorkerWords(worker.load))
                : AwayLine(time, "worker", worker.name, worker.status);
  }
  if (now.router) {
    const Status& status = now.router->status;
    text += status.ok()
                ? WordsRow(time, "router", "router", kRouterColumns, RouterWords(now.router->view))
                : AwayLine(time, "router", "router", status);
  }
  return text;
}

Json TopJson(const Snapshot* before, const Snapshot& now) {
  Json nodes = Json::array(), workers = Json::array();
  for (const SurveyedNode& node : now.nodes) nodes.push_back(NodeJson(before, now, node));
  for (const SampledWorker& worker : now.workers) workers.push_back(WorkerJson(worker));
  return {{"time", now.unix_seconds},
          {"interval_s", before == nullptr ? Json() : Json(Seconds(now.at - before->at))},
          {"nodes", std::move(nodes)},
          {"workers", std::move(workers)},
          {"router", now.router ? RouterJson(*now.router) : Json()}};
}

}  // namespace cairn::cli
