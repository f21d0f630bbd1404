#pragma once
// The texts that fidelity is measured on: benchmarks/fidelity/texts/SPLIT-SUITE.json.

#include <string>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::cli {

// A text whose beginning is the context and whose rest the continuation.
struct FidelityDocument {
  std::string name;
  std::string text;
};

// A context with facts hidden in hay, and questions that the model has not seen while it read it.
struct NeedleContext {
  struct Case {
    std::string kind;      // "number", "city", ...
    std::string question;  // The user's.
    std::string opening;   // The opening of the assistant's turn.
    std::string answer;    // The tokens that must follow, one by one.
  };
  std::string name;
  std::vector<std::string> facts;  // The first goes to the first block, the last to the last one.
  std::vector<std::string> hay;    // Paragraphs.
  std::vector<Case> cases;
};

struct FidelitySuite {
  std::string name;
  // One of the two is empty.
  std::vector<FidelityDocument> documents;
  std::vector<NeedleContext> needles;
  // For needles: the context goes on with a first question and its answer, and the others are asked
  // in a second turn.
  bool second_turn = false;
};

// Names of the suites, in the order of reports.
const std::vector<std::string>& FidelitySuites();

// The suites "keys", "tracking", "aggregation" and "sums" are RULER's and GSM8K's kinds of tasks,
// made by benchmarks/fidelity/build_tasks.py, which also makes longer contexts. The suite
// "multiturn" has the texts of "needles". At most `limit` documents or contexts; 0: all.
// NOT_FOUND naming the file; INVALID_ARGUMENT naming file and field.
Result<FidelitySuite> LoadFidelitySuite(const std::string& directory, const std::string& split,
                                        const std::string& suite, size_t limit);

}  // namespace cairn::cli
