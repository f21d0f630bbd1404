#pragma once
// The rows of a fidelity run, as a table and as JSON.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/cairn/fidelity/metrics.h"
#include "tools/cairn/output/json.h"
#include "tools/cairn/output/terminal.h"

namespace cairn::cli {

struct FidelityRow {
  std::string recipe;  // As given. For a read policy: the policy.
  std::string suite;
  // For documents; zero in a row of needles.
  Interval kl;           // Nats per token.
  double ppl_delta = 0;  // Perplexity's relative change, 0.01 = 1 %.
  double top1 = 0;       // Share of positions whose most likely token is the same.
  // For needles; zero in a row of documents.
  uint32_t needles_ok = 0;       // Answers that are still right, of
  uint32_t needles_n = 0;        // those that full KV answers.
  Interval needles;              // The share.
  std::optional<KvError> error;  // Relative, mean over texts. Nothing where the recipe selects.
  // Stored bytes, headers included, over all numbers of the stored blocks. For a read policy: bytes
  // that the worker keeps near, over all numbers of the context.
  double bits_per_number = 0;
  // For a read policy; else 0.
  double read_bits_per_number = 0;  // Bytes that a step reads of the whole KV, over all numbers.
  double late_share = 0;            // The share of the rows that steps chose.
  uint64_t fetched_tokens = 0;      // Tokens of contexts, as the node counted them.
  uint64_t computed_tokens = 0;     // Tokens of contexts. More than 0 fails the run.
  // By document or context, in the order of the suite: for comparisons in pairs.
  struct Text {
    double kl_sum = 0;
    uint32_t positions = 0;
    std::vector<std::optional<bool>> answered;  // By case; nullopt: full KV does not answer it.
  };
  std::vector<Text> texts;
};

Json FidelityJson(const std::vector<FidelityRow>& rows, bool exact, const std::string& model,
                  const std::string& split);

// Which rows a selection kept, for comparisons with other implementations.
struct KeptOfRecipe {
  struct Text {
    std::string name;
    std::vector<std::vector<std::byte>> kept;  // StoredKv::kept
  };
  std::string recipe;
  std::vector<Text> texts;
};
// {"suite", "recipes": [{"recipe", "texts": [{"name", "kept": [hexadecimal bytes]}]}]}, the bytes
// of StoredKv::kept.
Json KeptJson(const std::string& suite, const std::vector<KeptOfRecipe>& kept);

std::string FidelityTable(const std::vector<FidelityRow>& rows, const Terminal& terminal);

}  // namespace cairn::cli
