#include "tools/cairn/fidelity/runner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <utility>

#include "cairn/client/connect.h"
#include "tools/cairn/generator/connection.h"
#include "tools/cairn/process/interrupt.h"

namespace cairn::cli {
namespace {

// Bytes of a token's KV in binary16: those of SmolLM2-135M, and those that a node allocates beyond
// it. A node that cannot hold all contexts shows as a shortfall.
constexpr uint64_t kTokenBytes = 24 << 10;
constexpr uint64_t kLeastHostBytes = 1ull << 30;
constexpr char kExact[] = "raw";
constexpr std::chrono::seconds kIdle(600);
constexpr std::chrono::seconds kCall(60);

// The share of the size in binary16, as it is pushed, with the rows that a selection forgets. An
// entropy coder's depends on the content: the finest steps take so much.
double ShareOf(const Recipe& recipe) {
  constexpr codecs::SliceShape kShape = {
      .tokens = 64, .k_heads = 1, .k_dim = 64, .v_heads = 1, .v_dim = 64};
  // "keep" is the first parameter of a selection; masks and small slices cost more than the rows.
  const double kept =
      recipe.selection ? static_cast<double>(recipe.selection->values.front()) / 1000 + 0.05 : 1;
  const auto codec = recipe.rungs.front().codec.Make();
  if (codec == nullptr || !codec->FixedSize()) return 0.4 * kept;
  return kept *
         static_cast<double>(codec->MaxEncodedBytes(kShape, {.layer = 0, .first_position = 64})) /
         static_cast<double>(kShape.HalfBytes());
}

// Whether every token from answer_begin on is the most likely one after those before it.
bool IsAnswered(const ScoredContinuation& continuation, std::span<const int32_t> most_likely) {
  for (size_t i = continuation.answer_begin; i < continuation.tokens.size(); ++i) {
    if (most_likely[i - 1] != continuation.tokens[i]) return false;
  }
  return true;
}

}  // namespace

struct FidelityRunner::Arm {
  std::unique_ptr<WorkerProcess> fetcher;
  std::unique_ptr<Scorer> scorer;
  // The readers of the namespaces of raw and of the recipe.
  std::unique_ptr<StoredKvReader> exact, stored;
  // The last rung of a ladder: the codec that must have come from disk.
  std::optional<format::Codec> last_rung;
};

struct FidelityRunner::Totals {
  std::vector<Group> kl;       // By document.
  std::vector<Group> needles;  // By context.
  double full_nll = 0, other_nll = 0;
  uint64_t positions = 0, same_top1 = 0;
  uint64_t fetched_tokens = 0, computed_tokens = 0;
  uint32_t needles_ok = 0, needles_n = 0;
  uint64_t stored_bytes = 0, numbers = 0;
  worker::ReadCounters reading;
  double read_bits = 0;         // Sum over continuations, each of which is a mean over steps.
  uint32_t read = 0;            // Continuations.
  std::vector<KvError> errors;  // By text.
  std::vector<KeptOfRecipe::Text> kept;
  std::vector<FidelityRow::Text> texts;
};

FidelityRunner::FidelityRunner(Options options, Progress& progress)
    : options_(std::move(options)), progress_(progress) {}

Result<std::unique_ptr<WorkerProcess>> FidelityRunner::StartWorker(
    const std::string& name, std::vector<std::string> settings) {
  // Deadlines for a machine that has other work, too.
  settings.insert(settings.end(), {"--cache.stall_deadline", "30s"});
  if (options_.exact) settings.insert(settings.end(), {"--arithmetic", "float32"});
  return WorkerProcess::Start({.name = name,
                               .model_path = options_.model_path,
                               .cache = node_->address(),
                               .threads = options_.threads,
                               .log_directory = options_.out_directory,
                               .settings = std::move(settings)});
}

Status FidelityRunner::Run(const std::string& suite_name, const std::vector<std::string>& recipes,
                           const std::vector<std::string>& read_policies) {
  CAIRN_ASSIGN_OR_RETURN(
      const FidelitySuite suite,
      LoadFidelitySuite(options_.texts_directory, options_.split, suite_name, options_.limit));
  std::vector<Recipe> parsed;
  for (const std::string& recipe : recipes) {
    CAIRN_ASSIGN_OR_RETURN(parsed.emplace_back(), ParseRecipe(recipe));
  }
  const bool disk = std::ranges::any_of(parsed, &Recipe::IsLadder);
  CAIRN_RETURN_IF_ERROR(StartNode(suite, parsed, disk));
  CAIRN_RETURN_IF_ERROR(ComputeAndPush(suite, parsed));
  // The form that a ladder's blocks get on disk is served from there: after a new start all of them
  // are.
  if (disk) CAIRN_RETURN_IF_ERROR(RestartNode());
  for (size_t i = 0; i < recipes.size(); ++i) {
    CAIRN_RETURN_IF_ERROR(
        Annotate(RunRecipe(suite, recipes[i], parsed[i], ""), "recipe '" + recipes[i] + "'"));
  }
  CAIRN_ASSIGN_OR_RETURN(const Recipe raw, ParseRecipe(kExact));
  for (const std::string& policy : read_policies) {
    CAIRN_RETURN_IF_ERROR(
        Annotate(RunRecipe(suite, policy, raw, policy), "read policy '" + policy + "'"));
  }
  node_.reset();
  return OkStatus();
}

Status FidelityRunner::StartNode(const FidelitySuite& suite, const std::vector<Recipe>& recipes,
                                 bool disk) {
  const uint64_t tokens = suite.documents.size() * options_.shape.context_tokens +
                          suite.needles.size() * options_.shape.needle_tokens;
  double share = 1;  // Raw is always there.
  for (const Recipe& recipe : recipes) {
    if (recipe.Canonical() != kExact) share += ShareOf(recipe);
  }
  host_bytes_ = std::max(kLeastHostBytes,
                         static_cast<uint64_t>(static_cast<double>(tokens * kTokenBytes) * share));
  const std::string directory = options_.out_directory + "/node-disk";
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  node_.emplace(DemoNode::Options{.disk_directory = disk ? directory : "",
                                  .log_path = options_.out_directory + "/node.log",
                                  .external = ""});
  CAIRN_RETURN_IF_ERROR(node_->Start(host_bytes_));
  return Connect();
}

Status FidelityRunner::Connect() {
  CAIRN_ASSIGN_OR_RETURN(client_, client::Connect(ConnectionTo(node_->address())));
  CAIRN_ASSIGN_OR_RETURN(admin_, client::ConnectAdmin(ConnectionTo(node_->address())));
  return OkStatus();
}

Status FidelityRunner::RestartNode() {
  CAIRN_RETURN_IF_ERROR(node_->Flush());
  client_.reset();
  admin_.reset();
  node_->Kill();
  CAIRN_RETURN_IF_ERROR(node_->Start(host_bytes_));
  return Connect();
}

Status FidelityRunner::ComputeAndPush(const FidelitySuite& suite,
                                      const std::vector<Recipe>& recipes) {
  progress_.Doing(suite.name + ": starting the worker that computes");
  std::set<std::string> others;
  for (const Recipe& recipe : recipes) others.insert(recipe.Canonical());
  others.erase(kExact);
  std::vector<std::string> settings = {"--cache.push_niceness", "0"};
  if (!others.empty()) {
    settings.insert(settings.end(), {"--cache.publish", fmt::format("{}", fmt::join(others, ";"))});
  }
  CAIRN_ASSIGN_OR_RETURN(const auto worker, StartWorker("worker-push", std::move(settings)));
  CAIRN_ASSIGN_OR_RETURN(const auto scorer, ConnectScorer(worker->address()));
  CAIRN_RETURN_IF_ERROR(WaitForCache(worker->generator(), true, kCall));
  CAIRN_ASSIGN_OR_RETURN(plan_, PlanFidelity(suite, options_.shape, [&](const std::string& text) {
                           return scorer->Tokenize(text);
                         }));
  CAIRN_RETURN_IF_ERROR(
      Write(fmt::format("plan-{}.json", suite.name), PlanJson(suite.name, options_.split, plan_)));
  full_.clear();
  kept_.clear();
  for (size_t i = 0; i < plan_.size(); ++i) {
    if (Interrupted()) return Status(StatusCode::kCancelled, "interrupted");
    progress_.Doing(fmt::format("{}: full KV, text {} of {}", suite.name, i + 1, plan_.size()));
    CAIRN_RETURN_IF_ERROR(Annotate(ScoreFull(plan_[i], *scorer, worker->generator()),
                                   "text '" + plan_[i].name + "'"));
  }
  progress_.Done(fmt::format("{}: full KV, {} texts", suite.name, plan_.size()));
  return OkStatus();
}

Status FidelityRunner::ScoreFull(const ScoredText& text, Scorer& scorer, Generator& worker) {
  Full& full = full_.emplace_back();
  for (const ScoredContinuation& continuation : text.continuations) {
    std::vector<float> logits;
    std::vector<int32_t> most_likely;
    const bool first = full.logits.empty();
    // The first one computes the context and pushes it. The others read their worker's own binary16
    // numbers back, which are the same bytes.
    CAIRN_ASSIGN_OR_RETURN(
        const worker::GenerateSummary summary,
        scorer.Score(text.context, continuation.tokens, /*no_cache=*/false,
                     [&](size_t, size_t rows, std::span<const float> values) {
                       const size_t vocab = values.size() / rows;
                       for (size_t r = 0; r < rows; ++r) {
                         most_likely.push_back(ArgMax(values.subspan(r * vocab, vocab)));
                       }
                       if (!text.needles()) {
                         logits.insert(logits.end(), values.begin(), values.end());
                       }
                     }));
    if (first && summary.fetched_tokens != 0) {
      return Errorf(StatusCode::kFailedPrecondition, "{} tokens were fetched, expected none",
                    summary.fetched_tokens);
    }
    if (first) CAIRN_RETURN_IF_ERROR(worker.WaitIdle(kIdle));
    full.logits.push_back(std::move(logits));
    full.answered.push_back(IsAnswered(continuation, most_likely));
  }
  return OkStatus();
}

Status FidelityRunner::ScoreText(const ScoredText& text, const Full& full, Arm& arm,
                                 Totals* totals) {
  Group kl;
  Group needles;
  FidelityRow::Text judged;
  for (size_t c = 0; c < text.continuations.size(); ++c) {
    const ScoredContinuation& continuation = text.continuations[c];
    if (text.needles() && !full.answered[c]) {
      judged.answered.push_back(std::nullopt);
      continue;
    }
    CAIRN_ASSIGN_OR_RETURN(const client::NodeStats before,
                           client_->Stat({.deadline = kCall, .trace = ""}));
    std::vector<int32_t> most_likely;
    const auto on_rows = [&](size_t first, size_t rows, std::span<const float> values) {
      const size_t vocab = values.size() / rows;
      for (size_t r = 0; r < rows; ++r) {
        const std::span<const float> row = values.subspan(r * vocab, vocab);
        most_likely.push_back(ArgMax(row));
        const size_t next = first + r + 1;
        if (text.needles() || next < continuation.answer_begin ||
            next >= continuation.tokens.size()) {
          continue;
        }
        const Divergence d = Compare(std::span(full.logits[c]).subspan((first + r) * vocab, vocab),
                                     row, continuation.tokens[next]);
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
    CAIRN_ASSIGN_OR_RETURN(const client::NodeStats after,
                           client_->Stat({.deadline = kCall, .trace = ""}));
    const uint64_t counted = after.matched_tokens - before.matched_tokens;
    // Blocks of an index, which are matched after those of the context, count for the node.
    const bool counted_all = summary.reading.counters.fetched_indexes > 0
                                 ? counted > text.context.size()
                                 : counted == text.context.size();
    if (summary.fetched_tokens != text.context.size() || !counted_all) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "text '{}': of {} context tokens {} were fetched (the node counted {}, miss "
                    "reason {}), expected all",
                    text.name, text.context.size(), summary.fetched_tokens, counted,
                    Name(summary.miss_reason));
    }
    if (!summary.reading.policy.empty()) NoteReading(summary, text, arm, totals);
    totals->fetched_tokens += summary.fetched_tokens;
    totals->computed_tokens += summary.computed_tokens;
    if (text.needles()) {
      const bool answered = IsAnswered(continuation, most_likely);
      judged.answered.push_back(answered);
      needles.value += answered ? 1 : 0;
      needles.weight += 1;
    }
  }
  judged.kl_sum = kl.value;
  judged.positions = static_cast<uint32_t>(kl.weight);
  totals->texts.push_back(std::move(judged));
  if (kl.weight > 0) totals->kl.push_back(kl);
  if (needles.weight > 0) totals->needles.push_back(needles);
  totals->needles_ok += static_cast<uint32_t>(needles.value);
  totals->needles_n += static_cast<uint32_t>(needles.weight);
  return OkStatus();
}

void FidelityRunner::NoteReading(const worker::GenerateSummary& summary, const ScoredText& text,
                                 const Arm& arm, Totals* totals) {
  const worker::ReadCounters& counters = summary.reading.counters;
  const uint64_t numbers =
      text.context.size() * arm.exact->kv().bytes_per_token() / sizeof(uint16_t);
  totals->stored_bytes += summary.reading.near_bytes;
  totals->numbers += numbers;
  totals->reading += counters;
  ++totals->read;
  if (counters.steps > 0) {
    totals->read_bits += static_cast<double>(counters.read_bytes) * 8 /
                         static_cast<double>(counters.steps * numbers);
  }
}

Status FidelityRunner::MeasureStored(const ScoredText& text, Arm& arm, Totals* totals) {
  CAIRN_ASSIGN_OR_RETURN(const StoredKv exact, arm.exact->Read(text.context));
  CAIRN_ASSIGN_OR_RETURN(StoredKv stored, arm.stored->Read(text.context, options_.kept));
  if (arm.last_rung && stored.codecs != std::set<format::Codec>{*arm.last_rung}) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "text '{}': the node does not serve all of it in the ladder's last codec",
                  text.name);
  }
  if (!stored.pages.empty()) {
    totals->errors.push_back(RelativeError(exact.pages, stored.pages, arm.stored->kv()));
  }
  if (options_.kept) totals->kept.push_back({text.name, std::move(stored.kept)});
  totals->stored_bytes += stored.bytes;
  totals->numbers += stored.numbers;
  return OkStatus();
}

Result<std::unique_ptr<StoredKvReader>> FidelityRunner::Reader(const std::string& canonical) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<client::NamespaceInfo> namespaces,
                         admin_->ListNamespaces("", {.deadline = kCall, .trace = ""}));
  for (const client::NamespaceInfo& info : namespaces) {
    if (info.spec.recipe == canonical) {
      CAIRN_RETURN_IF_ERROR(
          client_->OpenNamespace(info.spec, {.deadline = kCall, .trace = ""}).status());
      return StoredKvReader::Create(*client_, info.spec);
    }
  }
  return Errorf(StatusCode::kNotFound, "the node has no namespace of recipe '{}'", canonical);
}

Status FidelityRunner::RunRecipe(const FidelitySuite& suite, const std::string& name,
                                 const Recipe& recipe, const std::string& read_policy) {
  progress_.Doing(fmt::format("{}: {}, starting a worker", suite.name, name));
  Arm arm;
  CAIRN_ASSIGN_OR_RETURN(arm.exact, Reader(kExact));
  CAIRN_ASSIGN_OR_RETURN(arm.stored, Reader(recipe.Canonical()));
  if (recipe.IsLadder()) {
    arm.last_rung = static_cast<format::Codec>(recipe.rungs.back().codec.info->id);
  }
  std::vector<std::string> settings = {"--cache.recipe", recipe.Canonical()};
  if (!read_policy.empty()) settings.insert(settings.end(), {"--read_policy", read_policy});
  CAIRN_ASSIGN_OR_RETURN(arm.fetcher, StartWorker("worker-fetch", std::move(settings)));
  CAIRN_ASSIGN_OR_RETURN(arm.scorer, ConnectScorer(arm.fetcher->address()));
  CAIRN_RETURN_IF_ERROR(WaitForCache(arm.fetcher->generator(), true, kCall));

  Totals totals;
  for (size_t i = 0; i < plan_.size(); ++i) {
    if (Interrupted()) return Status(StatusCode::kCancelled, "interrupted");
    progress_.Doing(fmt::format("{}: {}, text {} of {}", suite.name, name, i + 1, plan_.size()));
    CAIRN_RETURN_IF_ERROR(ScoreText(plan_[i], full_[i], arm, &totals));
    if (read_policy.empty()) CAIRN_RETURN_IF_ERROR(MeasureStored(plan_[i], arm, &totals));
  }
  if (options_.kept && recipe.selection) {
    kept_.push_back({name, std::move(totals.kept)});
    CAIRN_RETURN_IF_ERROR(
        Write(fmt::format("kept-{}.json", suite.name), Dump(KeptJson(suite.name, kept_)) + "\n"));
  }
  rows_.push_back(RowOf(suite.name, name, std::move(totals)));
  CAIRN_RETURN_IF_ERROR(Write("rows.json", DumpPretty(Report())));
  const FidelityRow& row = rows_.back();
  progress_.Done(suite.needles.empty()
                     ? fmt::format("{}: {}, KL {:.3g} at {:.2f} bits", suite.name, name,
                                   row.kl.mean, row.bits_per_number)
                     : fmt::format("{}: {}, {} of {} needles at {:.2f} bits", suite.name, name,
                                   row.needles_ok, row.needles_n, row.bits_per_number));
  return OkStatus();
}

Status FidelityRunner::Write(const std::string& name, const std::string& text) const {
  const std::string path = options_.out_directory + "/" + name;
  if (std::ofstream(path) << text << std::flush) return OkStatus();
  return Errorf(StatusCode::kInternal, "cannot write '{}'", path);
}

Json FidelityRunner::Report() const {
  return FidelityJson(rows_, options_.exact,
                      std::filesystem::path(options_.model_path).stem().string(), options_.split);
}

FidelityRow FidelityRunner::RowOf(const std::string& suite, const std::string& recipe,
                                  Totals totals) {
  FidelityRow row;
  row.recipe = recipe;
  row.suite = suite;
  row.kl = Bootstrap(totals.kl);
  if (totals.positions > 0) {
    const auto n = static_cast<double>(totals.positions);
    row.ppl_delta = std::exp((totals.other_nll - totals.full_nll) / n) - 1;
    row.top1 = static_cast<double>(totals.same_top1) / n;
  }
  row.needles_ok = totals.needles_ok;
  row.needles_n = totals.needles_n;
  row.needles = Bootstrap(totals.needles);
  row.bits_per_number =
      static_cast<double>(totals.stored_bytes) * 8 / static_cast<double>(totals.numbers);
  if (!totals.errors.empty()) row.error.emplace();
  for (const KvError& error : totals.errors) {
    row.error->k += error.k / static_cast<double>(totals.errors.size());
    row.error->v += error.v / static_cast<double>(totals.errors.size());
  }
  if (totals.read > 0) row.read_bits_per_number = totals.read_bits / totals.read;
  if (totals.reading.chosen_rows > 0) {
    row.late_share = static_cast<double>(totals.reading.late_rows) /
                     static_cast<double>(totals.reading.chosen_rows);
  }
  row.fetched_tokens = totals.fetched_tokens;
  row.computed_tokens = totals.computed_tokens;
  row.texts = std::move(totals.texts);
  return row;
}

}  // namespace cairn::cli
