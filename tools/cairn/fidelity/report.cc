#include "tools/cairn/fidelity/report.h"

#include <fmt/format.h>

#include "tools/cairn/output/table.h"

namespace cairn::cli {
namespace {

// [kl_sum, positions] of each document; [1, 0, null, ...] of each context's cases.
Json TextsOf(const FidelityRow& row) {
  Json texts = Json::array();
  for (const FidelityRow::Text& text : row.texts) {
    if (text.answered.empty()) {
      texts.push_back({text.kl_sum, text.positions});
      continue;
    }
    Json cases = Json::array();
    for (const std::optional<bool>& answered : text.answered) {
      cases.push_back(answered ? Json(*answered ? 1 : 0) : Json(nullptr));
    }
    texts.push_back(std::move(cases));
  }
  return texts;
}

}  // namespace

Json FidelityJson(const std::vector<FidelityRow>& rows, bool exact, const std::string& model,
                  const std::string& split) {
  Json out;
  out["model"] = model;
  out["split"] = split;
  out["arithmetic"] = exact ? "float32" : "fast";
  out["rows"] = Json::array();
  for (const FidelityRow& row : rows) {
    const bool needles = row.needles_n > 0;
    Json j;
    j["recipe"] = row.recipe;
    j["suite"] = row.suite;
    const auto of_documents = [&](const char* name, Json value) {
      j[name] = needles ? Json(nullptr) : std::move(value);
    };
    of_documents("kl", row.kl.mean);
    of_documents("kl_ci", {row.kl.low, row.kl.high});
    j["bits_per_number"] = row.bits_per_number;
    j["read_bits_per_number"] = row.read_bits_per_number;
    j["late_share"] = row.late_share;
    of_documents("ppl_delta", row.ppl_delta);
    of_documents("top1", row.top1);
    j["needles_ok"] = row.needles_ok;
    j["needles_n"] = row.needles_n;
    j["needles_ci"] = needles ? Json({row.needles.low, row.needles.high}) : Json(nullptr);
    j["err_k"] = row.error ? Json(row.error->k) : Json(nullptr);
    j["err_v"] = row.error ? Json(row.error->v) : Json(nullptr);
    j["fetched_tokens"] = row.fetched_tokens;
    j["computed_tokens"] = row.computed_tokens;
    j["texts"] = TextsOf(row);
    out["rows"].push_back(std::move(j));
  }
  return out;
}

Json KeptJson(const std::string& suite, const std::vector<KeptOfRecipe>& kept) {
  Json out{{"suite", suite}, {"recipes", Json::array()}};
  for (const KeptOfRecipe& recipe : kept) {
    Json texts = Json::array();
    for (const KeptOfRecipe::Text& text : recipe.texts) {
      Json masks = Json::array();
      for (const std::vector<std::byte>& mask : text.kept) {
        std::string hex;
        for (const std::byte b : mask) hex += fmt::format("{:02x}", static_cast<unsigned>(b));
        masks.push_back(std::move(hex));
      }
      texts.push_back({{"name", text.name}, {"kept", std::move(masks)}});
    }
    out["recipes"].push_back({{"recipe", recipe.recipe}, {"texts", std::move(texts)}});
  }
  return out;
}

std::string FidelityTable(const std::vector<FidelityRow>& rows, const Terminal& terminal) {
  Table table({{"recipe"},
               {"suite"},
               {"bits", Align::kRight},
               {"KL, nats", Align::kRight},
               {"95 %", Align::kRight},
               {"perplexity", Align::kRight},
               {"top 1", Align::kRight},
               {"needles", Align::kRight},
               {"error K, V", Align::kRight},
               {"fetched", Align::kRight}});
  for (const FidelityRow& row : rows) {
    const std::string bits = fmt::format("{:.2f}", row.bits_per_number);
    const std::string error =
        row.error ? fmt::format("{:.3f}, {:.3f}", row.error->k, row.error->v) : "";
    const std::string fetched = fmt::format("{}", row.fetched_tokens);
    if (row.needles_n > 0) {
      table.AddRow({row.recipe, row.suite, bits, "", "", "", "",
                    fmt::format("{}/{}", row.needles_ok, row.needles_n), error, fetched});
    } else {
      table.AddRow({row.recipe, row.suite, bits, fmt::format("{:.3g}", row.kl.mean),
                    fmt::format("{:.2g}..{:.2g}", row.kl.low, row.kl.high),
                    fmt::format("{:+.2f} %", 100 * row.ppl_delta),
                    fmt::format("{:.2f} %", 100 * row.top1), "", error, fetched});
    }
  }
  return table.Render(terminal);
}

}  // namespace cairn::cli
