#include "tools/cairn/size/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "tools/cairn/output/table.h"
#include "tools/cairn/output/units.h"

namespace cairn::cli::size {
namespace {

constexpr uint64_t kOrdinaryContext = 8192;

uint64_t BlocksOf(uint64_t tokens, uint32_t block_tokens) { return tokens / block_tokens; }

size_t LayersWithKv(const std::vector<LayerShape>& layers) {
  return static_cast<size_t>(std::count_if(layers.begin(), layers.end(),
                                           [](const LayerShape& l) { return !l.planes.empty(); }));
}

size_t LayersWithWindow(const std::vector<LayerShape>& layers) {
  return static_cast<size_t>(std::count_if(layers.begin(), layers.end(), [](const LayerShape& l) {
    return !l.planes.empty() && l.window > 0;
  }));
}

std::string LayoutText(const NativeLayout& layout, uint32_t block_tokens) {
  NamespaceSpec spec;
  spec.layout = {.block_tokens = block_tokens, .form = layout};
  for (auto& [field, value] : Describe(spec)) {
    if (field == "layout.native.groups") return std::move(value);
  }
  return "";
}

NativeLayout InHalves(NativeLayout layout) {
  for (LayerGroup& group : layout.groups) {
    for (Plane& plane : group.planes) plane.dtype = DType::kF16;
  }
  return layout;
}

// How often a context of the question fits into `blocks` blocks. None: it is shorter than a block.
std::optional<uint64_t> ContextsIn(uint64_t blocks, const Question& question) {
  const uint64_t of_one = BlocksOf(question.context_tokens, question.block_tokens);
  if (of_one == 0) return std::nullopt;
  return blocks / of_one;
}

Section MakeSection(std::string of, const std::vector<LayerShape>& layers,
                    const Question& question) {
  Section section{.of = std::move(of), .layers = layers, .layout = {}, .rows = {}};
  const NativeLayout layout = LayoutOf(layers);
  section.layout = LayoutText(layout, question.block_tokens);
  const NativeLayout halves = InHalves(layout);
  for (const std::string& recipe : question.recipes) {
    section.rows.push_back({recipe, SizeOf(layout, question.block_tokens, recipe)});
    section.halves_would_do |= !section.rows.back().size.ok() && halves != layout &&
                               SizeOf(halves, question.block_tokens, recipe).ok();
  }
  return section;
}

Json OrNull(std::optional<uint64_t> number) { return number ? Json(*number) : Json(); }

Json RowJson(const Row& row, const Question& question) {
  Json json;
  json["recipe"] = row.size.ok() ? row.size->recipe : row.recipe;
  if (!row.size.ok()) {
    json["refused"] = Message(row.size.status());
    return json;
  }
  const RecipeSize& size = *row.size;
  const uint64_t blocks = BlocksOf(question.context_tokens, question.block_tokens);
  json["exact"] =
      size.host.certainty == Certainty::kExact && size.disk.certainty == Certainty::kExact;
  json["bytes_per_token"] = static_cast<double>(size.host.bytes) / question.block_tokens;
  json["block_bytes"] = size.host.bytes;
  json["block_bytes_on_disk"] = size.disk.bytes;
  json["block_room_in_host"] = size.HostRoom();
  json["block_room_on_disk"] = size.DiskRoom();
  json["context_blocks"] = blocks;
  json["context_bytes"] = blocks * size.HostRoom();
  if (question.host_bytes > 0) {
    const uint64_t fit = BlocksInHost(question.host_bytes, size.HostRoom());
    json["host_blocks"] = fit;
    json["host_tokens"] = fit * question.block_tokens;
    json["host_contexts"] = OrNull(ContextsIn(fit, question));
  }
  if (question.disk_bytes > 0) {
    const uint64_t fit = question.disk_bytes / size.DiskRoom();
    json["disk_blocks"] = fit;
    json["disk_tokens"] = fit * question.block_tokens;
    json["disk_contexts"] = OrNull(ContextsIn(fit, question));
  }
  return json;
}

std::string About(const BlockSize& size, std::string text) {
  if (size.certainty == Certainty::kEstimated) text.insert(0, 1, '~');
  return text;
}

std::string TableOf(const Section& section, const Question& question, const Terminal& terminal) {
  std::vector<Table::Column> columns = {
      {"recipe"},
      {"a token", Align::kRight},
      {fmt::format("a block of {}", question.block_tokens), Align::kRight},
      {fmt::format("{} tokens", Grouped(question.context_tokens)), Align::kRight}};
  if (question.host_bytes > 0) {
    columns.push_back({"blocks in " + HumanBytes(question.host_bytes) + " RAM", Align::kRight});
    columns.push_back({"tokens", Align::kRight});
    columns.push_back({"contexts", Align::kRight});
  }
  if (question.disk_bytes > 0) {
    columns.push_back({"blocks on " + HumanBytes(question.disk_bytes) + " disk", Align::kRight});
    columns.push_back({"tokens", Align::kRight});
    columns.push_back({"contexts", Align::kRight});
  }
  Table table(std::move(columns));
  for (const Row& row : section.rows) {
    if (!row.size.ok()) {
      table.AddRow({row.recipe, "refused"});
      continue;
    }
    const RecipeSize& size = *row.size;
    const uint64_t blocks = BlocksOf(question.context_tokens, question.block_tokens);
    std::vector<Cell> cells = {
        size.recipe, About(size.host, HumanBytes(size.host.bytes / question.block_tokens)),
        About(size.host, HumanBytes(size.host.bytes)),
        About(size.host, HumanBytes(blocks * size.HostRoom()))};
    const auto add_room = [&](const BlockSize& of, uint64_t fit) {
      const auto contexts = ContextsIn(fit, question);
      cells.emplace_back(About(of, Grouped(fit)));
      cells.emplace_back(About(of, Grouped(fit * question.block_tokens)));
      cells.emplace_back(contexts ? About(of, Grouped(*contexts)) : "-");
    };
    if (question.host_bytes > 0) {
      add_room(size.host, BlocksInHost(question.host_bytes, size.HostRoom()));
    }
    if (question.disk_bytes > 0) add_room(size.disk, question.disk_bytes / size.DiskRoom());
    table.AddRow(std::move(cells));
  }
  return table.Render(terminal);
}

std::string SectionText(const Section& section, const Question& question,
                        const Terminal& terminal) {
  std::string text = fmt::format(
      "\n{}: {} of {} layers keep KV, {} a token\n  {}\n",
      section.of == "sequence" ? "Each token of a sequence" : "Each token of the encoder's input",
      LayersWithKv(section.layers), section.layers.size(), HumanBytes(BytesOfToken(section.layers)),
      section.layout);
  if (const size_t sliding = LayersWithWindow(section.layers); sliding > 0) {
    text += fmt::format(
        "  {} layers have a window: of {} tokens an engine needs {}, a node stores {}\n", sliding,
        Grouped(question.context_tokens),
        HumanBytes(BytesInUse(section.layers, question.context_tokens)),
        HumanBytes(BytesOfToken(section.layers) * question.context_tokens));
  }
  text += TableOf(section, question, terminal);
  for (const Row& row : section.rows) {
    if (!row.size.ok()) text += fmt::format("{}: {}\n", row.recipe, Message(row.size.status()));
  }
  if (section.halves_would_do) {
    text +=
        "Codecs and selections read f16: --dtype f16 shows what they take of this model then.\n";
  }
  return text;
}

}  // namespace

bool Report::AllRefused() const {
  for (const Section& section : sections) {
    for (const Row& row : section.rows) {
      if (row.size.ok()) return false;
    }
  }
  return true;
}

Report MakeReport(ModelShape shape, Question question) {
  const bool assumed = question.context_tokens == 0 && shape.context_tokens == 0;
  if (question.context_tokens == 0) {
    question.context_tokens = shape.context_tokens > 0 ? shape.context_tokens : kOrdinaryContext;
  }
  Report report{.shape = std::move(shape),
                .question = std::move(question),
                .sections = {},
                .context_assumed = assumed};
  report.sections.push_back(MakeSection("sequence", report.shape.layers, report.question));
  if (!report.shape.cross_layers.empty()) {
    report.sections.push_back(
        MakeSection("encoder_input", report.shape.cross_layers, report.question));
  }
  return report;
}

Json ToJson(const Report& report) {
  Json json;
  json["architecture"] = report.shape.architecture;
  json["attention"] = Name(report.shape.attention);
  json["context_tokens"] = report.question.context_tokens;
  json["block_tokens"] = report.question.block_tokens;
  json["kv"] = Json::array();
  for (const Section& section : report.sections) {
    Json out;
    out["of"] = section.of;
    out["layers"] = section.layers.size();
    out["layers_with_kv"] = LayersWithKv(section.layers);
    out["layers_with_window"] = LayersWithWindow(section.layers);
    out["layout"] = section.layout;
    out["raw_bytes_per_token"] = BytesOfToken(section.layers);
    out["engine_bytes"] = BytesInUse(section.layers, report.question.context_tokens);
    out["recipes"] = Json::array();
    for (const Row& row : section.rows) out["recipes"].push_back(RowJson(row, report.question));
    json["kv"].push_back(std::move(out));
  }
  return json;
}

std::string ToText(const Report& report, const Terminal& terminal) {
  const ModelShape& shape = report.shape;
  std::string text =
      fmt::format("{}, {}\n", shape.architecture.empty() ? "A model" : shape.architecture,
                  Name(shape.attention));
  bool estimated = false;
  for (const Section& section : report.sections) {
    text += SectionText(section, report.question, terminal);
    for (const Row& row : section.rows) {
      estimated |= row.size.ok() && (row.size->host.certainty == Certainty::kEstimated ||
                                     row.size->disk.certainty == Certainty::kEstimated);
    }
  }
  if (report.context_assumed) {
    text +=
        fmt::format("No context is given: {} tokens are taken for one, --context says another.\n",
                    Grouped(report.question.context_tokens));
  }
  if (estimated) text += "~: depends on the numbers; this is for normally distributed ones.\n";
  return text;
}

}  // namespace cairn::cli::size
