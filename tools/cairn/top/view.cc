#include "tools/cairn/top/view.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

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

std::string NameOf(const SurveyedNode& node) {
  return node.node_id.empty() ? node.address : node.node_id;
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

std::string ShareWord(std::optional<double> share) {
  return share ? fmt::format("{:.3f}", *share) : kUnknown;
}

std::string NodeLine(const Snapshot* before, const Snapshot& now, const SurveyedNode& node) {
  const client::NodeStats& stats = *node.stats;
  std::string line;
  for (const client::TierStat& tier : stats.tiers) {
    line += fmt::format(" {0}_used_bytes={1} {0}_capacity_bytes={2}", Name(tier.tier),
                        tier.used_bytes, tier.capacity_bytes);
  }
  const auto rates = RatesOf(before, now, node);
  line += " hits=" + ShareWord(HitShare(stats.matched_tokens, stats.missed_tokens));
  if (rates) {
    line += fmt::format(
        " hits_now={} to_workers_bytes_per_s={:.0f} from_workers_bytes_per_s={:.0f} "
        "from_peers_bytes_per_s={:.0f}",
        ShareWord(HitShare(rates->matched_tokens, rates->missed_tokens)), rates->to_workers,
        rates->from_workers, rates->from_peers);
  }
  return line + fmt::format(" leases={}", stats.leases);
}

std::string WorkerLine(const WorkerLoad& load) {
  return fmt::format(
      " waiting={} prompts={} decodes={} parked={} free_pages={} pages={} prefill_s={:.3f} "
      "draining={} cache_connected={}",
      load.queued_requests, load.running_prompts, load.running_decodes, load.parked,
      load.kv_pages_free, load.kv_pages_total, load.prefill_seconds, load.draining,
      load.cache_connected);
}

std::string RouterLine(const RouterView& view) {
  return fmt::format(
      " workers={} ready_workers={} requests_per_s={:.2f} use={:.3f} active={} completed={} "
      "shed={} cached={} index_bytes={}",
      view.workers, view.ready_workers, view.arrivals_per_second, view.use, view.requests_active,
      view.requests_completed, view.requests_shed,
      ShareWord(PartOf(view.cached_tokens, view.prompt_tokens)), view.index_bytes);
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

std::string TopLines(const Snapshot* before, const Snapshot& now) {
  const std::string time = Clock(now.unix_seconds);
  std::string text;
  for (const SurveyedNode& node : now.nodes) {
    text += time + " " + NameOf(node);
    text += node.stats ? NodeLine(before, now, node) : " away: " + Message(node.status);
    text += "\n";
  }
  for (const SampledWorker& worker : now.workers) {
    text += time + " " + worker.name;
    text += worker.status.ok() ? WorkerLine(worker.load) : " away: " + Message(worker.status);
    text += "\n";
  }
  if (now.router) {
    const Status& status = now.router->status;
    text += time + " router";
    text += status.ok() ? RouterLine(now.router->view) : " away: " + Message(status);
    text += "\n";
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
