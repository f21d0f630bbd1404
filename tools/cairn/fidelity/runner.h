#pragma once
// Measures recipes through the real cache path. One worker computes each context once, says what
// follows with full KV, and pushes the context in each recipe to the recipe's namespace. Then,
// recipe by recipe, another worker fetches the contexts and says what follows.
//
// A node with ladders has a disk tier and is killed and started again between the two, so that all
// blocks come from disk: a ladder's loss is that of its last rung.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "common/recipe/recipe.h"
#include "tools/cairn/demo/cluster.h"
#include "tools/cairn/fidelity/plan.h"
#include "tools/cairn/fidelity/report.h"
#include "tools/cairn/fidelity/stored_kv.h"
#include "tools/cairn/generator/generator.h"
#include "tools/cairn/generator/scorer.h"
#include "tools/cairn/output/progress.h"

namespace cairn::cli {

// Not thread-safe.
class FidelityRunner {
 public:
  struct Options {
    std::string model_path;
    std::string out_directory;  // Exists. Logs go there, and rows.json: the rows so far.
    std::string texts_directory;
    std::string split;
    bool exact = false;  // float32 arithmetic.
    int threads = 0;     // 0: the worker's default.
    uint32_t limit = 0;  // Documents or contexts of each suite; 0: all.
    bool kept = false;   // Write kept-SUITE.json (report.h).
    FidelityShape shape = {};
  };
  // `progress` must outlive the runner.
  FidelityRunner(Options options, Progress& progress);

  // Adds one row per recipe. FAILED_PRECONDITION when a context was not fetched in full: what would
  // be measured then is not the recipe. CANCELLED after Ctrl-C.
  // Then one row per read policy: the context is fetched raw and read by rows.
  Status Run(const std::string& suite, const std::vector<std::string>& recipes,
             const std::vector<std::string>& read_policies = {});

  // All rows: FidelityJson.
  Json Report() const;
  const std::vector<FidelityRow>& rows() const { return rows_; }

 private:
  // The answers of the worker with full KV about a text, by continuation.
  struct Full {
    std::vector<std::vector<float>> logits;  // Documents: [tokens][vocab].
    // Needles: every token of the answer is the most likely.
    std::vector<bool> answered;
  };
  struct Arm;     // A worker that reads a recipe's namespace.
  struct Totals;  // The sums that a row is made of.

  Result<std::unique_ptr<WorkerProcess>> StartWorker(const std::string& name,
                                                     std::vector<std::string> settings);
  Status StartNode(const FidelitySuite& suite, const std::vector<Recipe>& recipes, bool disk);
  Status RestartNode();
  Status Connect();
  // Fills plan_ and full_; afterwards the node has all contexts in all recipes.
  Status ComputeAndPush(const FidelitySuite& suite, const std::vector<Recipe>& recipes);
  Status ScoreFull(const ScoredText& text, Scorer& scorer, Generator& worker);
  // `read_policy` empty: none.
  Status RunRecipe(const FidelitySuite& suite, const std::string& name, const Recipe& recipe,
                   const std::string& read_policy);
  Status ScoreText(const ScoredText& text, const Full& full, Arm& arm, Totals* totals);
  static void NoteReading(const worker::GenerateSummary& summary, const ScoredText& text,
                          const Arm& arm, Totals* totals);
  Status MeasureStored(const ScoredText& text, Arm& arm, Totals* totals);
  Result<std::unique_ptr<StoredKvReader>> Reader(const std::string& canonical);
  Status Write(const std::string& name, const std::string& text) const;
  static FidelityRow RowOf(const std::string& suite, const std::string& recipe, Totals totals);

  const Options options_;
  Progress& progress_;
  // The node of the suite under way.
  std::optional<DemoNode> node_;
  uint64_t host_bytes_ = 0;
  std::unique_ptr<client::CacheClient> client_;
  std::unique_ptr<client::AdminClient> admin_;
  std::vector<ScoredText> plan_;
  std::vector<Full> full_;
  std::vector<KeptOfRecipe> kept_;

  std::vector<FidelityRow> rows_;
};

}  // namespace cairn::cli
