#pragma once
// Measures recipes through the real cache path: one worker computes a context and pushes it, a node
// stores it, another worker fetches it and computes a continuation on it. Compared with a worker that
// computed the same context itself.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "services/common/status/status.h"
#include "tools/cairn/demo/cluster.h"
#include "tools/cairn/fidelity/plan.h"
#include "tools/cairn/fidelity/report.h"
#include "tools/cairn/generator/scorer.h"
#include "tools/cairn/output/progress.h"

namespace cairn::cli {

// Not thread-safe.
class FidelityRunner {
 public:
  struct Options {
    std::string model_path;
    std::string out_directory;  // Exists. Logs go there.
    std::string texts_directory;
    std::string split;
    bool exact = false;  // float32 arithmetic.
    int threads = 0;     // 0: the worker's default.
    uint32_t limit = 0;  // Documents or contexts of each suite; 0: all.
    FidelityShape shape = {};
  };
  // `progress` must outlive the runner.
  FidelityRunner(Options options, Progress& progress);

  // Adds one row per recipe. FAILED_PRECONDITION when a context was not fetched in full: what would be
  // measured then is not the recipe. CANCELLED after Ctrl-C.
  Status Run(const std::string& suite, const std::vector<std::string>& recipes);

  const std::vector<FidelityRow>& rows() const { return rows_; }

 private:
  // What the worker with full KV says about a text, by continuation.
  struct Full {
    std::vector<std::vector<float>> logits;  // Documents: [tokens][vocab].
    std::vector<bool> answered;              // Needles: every token of the answer is the most likely.
  };
  struct Arm;     // A node and two workers that use a recipe.
  struct Totals;  // What a row is made of.

  Result<std::unique_ptr<WorkerProcess>> StartWorker(const std::string& name,
                                                     const std::string& cache,
                                                     const std::string& recipe);
  Status ScoreFull(const FidelitySuite& suite);
  Status RunRecipe(const FidelitySuite& suite, const std::string& recipe);
  Status ScoreText(const ScoredText& text, const Full& full, Arm& arm, Totals* totals);
  Result<double> StoredBits(const Arm& arm) const;  // Per number.

  const Options options_;
  Progress& progress_;
  // Of the suite under way.
  std::vector<ScoredText> plan_;
  std::vector<Full> full_;

  std::vector<FidelityRow> rows_;
};

}  // namespace cairn::cli
