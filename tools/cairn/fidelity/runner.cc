#include "tools/cairn/fidelity/runner.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <utility>

#include "cairn/client/connect.h"
#include "tools/cairn/generator/connection.h"
#include "tools/cairn/process/interrupt.h"

namespace cairn::cli {
namespace {

constexpr uint64_t kNodeBytes = 2ull << 30;
constexpr std::chrono::seconds kIdle(120);
constexpr std::chrono::seconds kCall(10);

// Whether every token from answer_begin on is the most likely one after those before it.
bool IsAnswered(const ScoredContinuation& continuation, std::span<const int32_t> most_likely) {
  for (size_t i = continuation.answer_begin; i < continuation.tokens.size(); ++i) {
    if (most_likely[i - 1] != continuation.tokens[i]) return false;
  }
  return true;
}

}  // namespace

struct FidelityRunner::Arm {
  CacheNodeProcess node;
  std::unique_ptr<client::CacheClient> client;
  std::unique_ptr<client::AdminClient> admin;
  std::unique_ptr<WorkerProcess> pusher;
  std::unique_ptr<WorkerProcess> fetcher;
  std::unique_ptr<Scorer> scorer;  // Of the fetcher.
};

struct FidelityRunner::Totals {
  std::vector<Group> kl;       // By document.
  std::vector<Group> needles;  // By context.
  double full_nll = 0, other_nll = 0;
  uint64_t positions = 0, same_top1 = 0;
  uint64_t fetched_tokens = 0, computed_tokens = 0;
  uint32_t needles_ok = 0, needles_n = 0;
};

FidelityRunner::FidelityRunner(Options options, Progress& progress)
    : options_(std::move(options)), progress_(progress) {}

Result<std::unique_ptr<WorkerProcess>> FidelityRunner::StartWorker(const std::string& name,
                                                                   const std::string& cache,
                                                                   const std::string& recipe) {
  WorkerProcess::Options options{.name = name,
                                 .model_path = options_.model_path,
                                 .cache = cache,
                                 .threads = options_.threads,
                                 .log_directory = options_.out_directory};
  if (options_.exact) options.settings = {"--arithmetic", "float32"};
  if (!cache.empty() && recipe != "raw") {
    options.settings.insert(options.settings.end(), {"--cache.recipe", recipe});
  }
  return WorkerProcess::Start(options);
}

Status FidelityRunner::Run(const std::string& suite_name, const std::vector<std::string>& recipes) {
  CAIRN_ASSIGN_OR_RETURN(const FidelitySuite suite,
                         LoadFidelitySuite(options_.texts_directory, options_.split, suite_name,
                                           options_.limit));
  CAIRN_RETURN_IF_ERROR(ScoreFull(suite));
  for (const std::string& recipe : recipes) {
    CAIRN_RETURN_IF_ERROR(Annotate(RunRecipe(suite, recipe), "recipe '" + recipe + "'"));
  }
  return OkStatus();
}

Status FidelityRunner::ScoreFull(const FidelitySuite& suite) {
  progress_.Doing(suite.name + ": starting the worker with full KV");
  CAIRN_ASSIGN_OR_RETURN(const auto worker, StartWorker("worker-full", "", "raw"));
  CAIRN_ASSIGN_OR_RETURN(const auto scorer, ConnectScorer(worker->address()));
  CAIRN_ASSIGN_OR_RETURN(plan_, PlanFidelity(suite, options_.shape, [&](const std::string& text) {
                           return scorer->Tokenize(text);
                         }));
  const std::string path = fmt::format("{}/plan-{}.json", options_.out_directory, suite.name);
  if (!(std::ofstream(path) << PlanJson(suite.name, options_.split, plan_) << std::flush)) {
    return Errorf(StatusCode::kInternal, "cannot write '{}'", path);
  }
  full_.clear();
  for (size_t i = 0; i < plan_.size(); ++i) {
    if (Interrupted()) return Status(StatusCode::kCancelled, "interrupted");
    progress_.Doing(fmt::format("{}: full KV, text {} of {}", suite.name, i + 1, plan_.size()));
    Full& full = full_.emplace_back();
    for (const ScoredContinuation& continuation : plan_[i].continuations) {
      std::vector<float> logits;
      std::vector<int32_t> most_likely;
      const auto done = scorer->Score(
          plan_[i].context, continuation.tokens, /*no_cache=*/true,
          [&](size_t, size_t rows, std::span<const float> values) {
            const size_t vocab = values.size() / rows;
            for (size_t r = 0; r < rows; ++r) {
              most_likely.push_back(ArgMax(values.subspan(r * vocab, vocab)));
            }
            if (suite.needles.empty()) logits.insert(logits.end(), values.begin(), values.end());
          });
      CAIRN_RETURN_IF_ERROR(Annotate(done.status(), "text '" + plan_[i].name + "'"));
      full.logits.push_back(std::move(logits));
      full.answered.push_back(IsAnswered(continuation, most_likely));
    }
  }
  progress_.Done(fmt::format("{}: full KV, {} texts", suite.name, plan_.size()));
  return OkStatus();
}

Status FidelityRunner::ScoreText(const ScoredText& text, const Full& full, Arm& arm,
                                 Totals* totals) {
  worker::GenerateRequest push;
  push.prompt = worker::TokenPrompt{text.context};
  push.max_tokens = 1;
  CAIRN_RETURN_IF_ERROR(arm.pusher->generator().Generate(push, {}).status());
  CAIRN_RETURN_IF_ERROR(arm.pusher->generator().WaitIdle(kIdle));

  Group kl;
  Group needles;
  for (size_t c = 0; c < text.continuations.size(); ++c) {
    const ScoredContinuation& continuation = text.continuations[c];
    const bool documents = !full.logits[c].empty();
    if (!documents && !full.answered[c]) continue;
    CAIRN_ASSIGN_OR_RETURN(const client::NodeStats before, arm.client->Stat({.deadline = kCall, .trace = ""}));
    std::vector<int32_t> most_likely;
    const auto on_rows = [&](size_t first, size_t rows, std::span<const float> values) {
      const size_t vocab = values.size() / rows;
      for (size_t r = 0; r < rows; ++r) {
        const std::span<const float> row = values.subspan(r * vocab, vocab);
        most_likely.push_back(ArgMax(row));
        const size_t next = first + r + 1;
        if (!documents || next < continuation.answer_begin || next >= continuation.tokens.size()) {
          continue;
        }
        const Divergence d =
            Compare(std::span(full.logits[c]).subspan((first + r) * vocab, vocab), row,
                    continuation.tokens[next]);
        kl.value += d.kl;
        kl.weight += 1;
        totals->full_nll += d.full_nll;
        totals->other_nll += d.other_nll;
        totals->same_top1 += d.same_top1 ? 1 : 0;
        ++totals->positions;
      }
    };
    CAIRN_ASSIGN_OR_RETURN(
        const worker::GenerateSummary summary,
        arm.scorer->Score(text.context, continuation.tokens, /*no_cache=*/false, on_rows));
    CAIRN_ASSIGN_OR_RETURN(const client::NodeStats after, arm.client->Stat({.deadline = kCall, .trace = ""}));
    const uint64_t counted = after.matched_tokens - before.matched_tokens;
    if (summary.fetched_tokens != text.context.size() || counted != text.context.size()) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "text '{}': of {} context tokens {} were fetched (the node counted {}, miss "
                    "reason {}), expected all",
                    text.name, text.context.size(), summary.fetched_tokens, counted,
                    worker::Name(summary.miss_reason));
    }
    totals->fetched_tokens += counted;
    totals->computed_tokens += summary.computed_tokens;
    if (!documents) {
      needles.value += IsAnswered(continuation, most_likely) ? 1 : 0;
      needles.weight += 1;
    }
  }
  if (kl.weight > 0) totals->kl.push_back(kl);
  if (needles.weight > 0) totals->needles.push_back(needles);
  totals->needles_ok += static_cast<uint32_t>(needles.value);
  totals->needles_n += static_cast<uint32_t>(needles.weight);
  return OkStatus();
}

Result<double> FidelityRunner::StoredBits(const Arm& arm) const {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<client::NamespaceInfo> namespaces,
                         arm.admin->ListNamespaces("", {.deadline = kCall, .trace = ""}));
  if (namespaces.size() != 1) {
    return Errorf(StatusCode::kInternal, "the node has {} namespaces, expected one",
                  namespaces.size());
  }
  return BitsPerNumber(namespaces.front());
}

Status FidelityRunner::RunRecipe(const FidelitySuite& suite, const std::string& recipe) {
  progress_.Doing(fmt::format("{}: {}, starting a node and two workers", suite.name, recipe));
  Arm arm;
  CAIRN_ASSIGN_OR_RETURN(arm.node,
                         StartCacheNode({.host_bytes = kNodeBytes,
                                         .disk_directory = "",
                                         .log_path = options_.out_directory + "/node.log"}));
  CAIRN_ASSIGN_OR_RETURN(arm.client, client::Connect(ConnectionTo(arm.node.address)));
  CAIRN_ASSIGN_OR_RETURN(arm.admin, client::ConnectAdmin(ConnectionTo(arm.node.address)));
  CAIRN_ASSIGN_OR_RETURN(arm.pusher, StartWorker("worker-push", arm.node.address, recipe));
  CAIRN_ASSIGN_OR_RETURN(arm.fetcher, StartWorker("worker-fetch", arm.node.address, recipe));
  CAIRN_ASSIGN_OR_RETURN(arm.scorer, ConnectScorer(arm.fetcher->address()));
  CAIRN_RETURN_IF_ERROR(WaitForCache(arm.pusher->generator(), true, kCall));
  CAIRN_RETURN_IF_ERROR(WaitForCache(arm.fetcher->generator(), true, kCall));

  Totals totals;
  for (size_t i = 0; i < plan_.size(); ++i) {
    if (Interrupted()) return Status(StatusCode::kCancelled, "interrupted");
    progress_.Doing(
        fmt::format("{}: {}, text {} of {}", suite.name, recipe, i + 1, plan_.size()));
    CAIRN_RETURN_IF_ERROR(ScoreText(plan_[i], full_[i], arm, &totals));
  }

  FidelityRow row;
  row.recipe = recipe;
  row.suite = suite.name;
  row.kl = Bootstrap(totals.kl);
  if (totals.positions > 0) {
    const auto n = static_cast<double>(totals.positions);
    row.ppl_delta = std::exp((totals.other_nll - totals.full_nll) / n) - 1;
    row.top1 = static_cast<double>(totals.same_top1) / n;
  }
  row.needles_ok = totals.needles_ok;
  row.needles_n = totals.needles_n;
  row.needles = Bootstrap(totals.needles);
  CAIRN_ASSIGN_OR_RETURN(row.bits_per_number, StoredBits(arm));
  row.fetched_tokens = totals.fetched_tokens;
  row.computed_tokens = totals.computed_tokens;
  rows_.push_back(row);
  progress_.Done(suite.needles.empty()
                     ? fmt::format("{}: {}, KL {:.3g} at {:.2f} bits", suite.name, recipe,
                                   row.kl.mean, row.bits_per_number)
                     : fmt::format("{}: {}, {} of {} needles at {:.2f} bits", suite.name, recipe,
                                   row.needles_ok, row.needles_n, row.bits_per_number));
  return OkStatus();
}

}  // namespace cairn::cli
