#pragma once
// The output of `cairn size`, as text and as JSON.

#include <cstdint>
#include <string>
#include <vector>

#include "tools/cairn/output/json.h"
#include "tools/cairn/output/terminal.h"
#include "tools/cairn/size/model_shape.h"
#include "tools/cairn/size/sizes.h"

namespace cairn::cli::size {

struct Question {
  uint32_t block_tokens = 64;
  std::vector<std::string> recipes;
  uint64_t context_tokens = 0;  // 0: the model's own, or 8192 if it does not say one.
  uint64_t host_bytes = 0;      // The size of a host tier. 0: not asked.
  uint64_t disk_bytes = 0;      // The size of a disk tier. 0: not asked.
};

// The numbers of one recipe.
struct Row {
  std::string recipe;       // As it was asked.
  Result<RecipeSize> size;  // An error: a node refuses it.
};

// One namespace: the tokens of a sequence, or of an encoder's input.
struct Section {
  std::string of;  // "sequence", "encoder_input".
  std::vector<LayerShape> layers;
  std::string layout;  // As a node writes it in its messages.
  std::vector<Row> rows;
  // A node refuses a row, and would take it if the same planes were of half precision.
  bool halves_would_do = false;
};

struct Report {
  ModelShape shape;
  Question question;
  std::vector<Section> sections;
  bool context_assumed = false;  // Neither the question nor the model names a context.
  bool AllRefused() const;
};

Report MakeReport(ModelShape shape, Question question);
Json ToJson(const Report& report);
std::string ToText(const Report& report, const Terminal& terminal);

}  // namespace cairn::cli::size
