#include "tools/cairn/fidelity/plan.h"

#include <algorithm>

#include "tools/cairn/output/json.h"

namespace cairn::cli {
namespace {

constexpr char kUserTurn[] = "<|im_start|>user\n";
constexpr char kTurnEnd[] = "<|im_end|>\n";
constexpr char kAssistantTurn[] = "<|im_start|>assistant\n";

Result<ScoredText> PlanDocument(const FidelityDocument& document, const FidelityShape& shape,
                                const TokenizeFunction& tokenize) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenize(document.text));
  const size_t want = shape.context_tokens + shape.continuation_tokens;
  if (ids.size() < want) {
    return InvalidArgument("document '{}': {} tokens, expected at least {}", document.name,
                           ids.size(), want);
  }
  const auto border = ids.begin() + shape.context_tokens;
  ScoredText text{.name = document.name, .context = {ids.begin(), border}, .continuations = {}};
  text.continuations.push_back({.tokens = {border, ids.begin() + static_cast<ptrdiff_t>(want)}});
  return text;
}

std::string Asked(const NeedleContext::Case& c) {
  return c.question + kTurnEnd + kAssistantTurn + c.opening;
}

// Facts and hay in turn: fact, hay, ..., hay, fact, and then the first turn's question and answer,
// if there is one. Hay is cut so that all this is whole blocks.
Result<ScoredText> PlanNeedles(const NeedleContext& needles, bool second_turn,
                               const FidelityShape& shape, const TokenizeFunction& tokenize) {
  // The first question is about a fact in the middle: the rows that a selection keeps for it lie
  // apart from the other facts.
  const size_t asked_first = second_turn ? needles.cases.size() / 2 : needles.cases.size();
  std::vector<int32_t> first_turn;
  if (second_turn) {
    if (needles.cases.size() < 2) {
      return InvalidArgument(
          "needle context '{}': {} cases, expected at least 2, one for each turn", needles.name,
          needles.cases.size());
    }
    const NeedleContext::Case& first = needles.cases[asked_first];
    CAIRN_ASSIGN_OR_RETURN(first_turn, tokenize(Asked(first) + first.answer + "." + kTurnEnd));
  }
  std::vector<std::vector<int32_t>> facts;
  size_t fixed_tokens = first_turn.size();
  for (size_t i = 0; i < needles.facts.size(); ++i) {
    const std::string before = i == 0 ? kUserTurn : "\n\n";
    CAIRN_ASSIGN_OR_RETURN(facts.emplace_back(), tokenize(before + needles.facts[i] + "\n\n"));
    fixed_tokens += facts.back().size();
  }
  std::vector<int32_t> hay;
  for (const std::string& paragraph : needles.hay) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenize(paragraph + "\n\n"));
    hay.insert(hay.end(), ids.begin(), ids.end());
  }
  const size_t total = std::min<size_t>(
      shape.needle_tokens, (fixed_tokens + hay.size()) / shape.block_tokens * shape.block_tokens);
  if (facts.size() < 2 || total < fixed_tokens) {
    return InvalidArgument(
        "needle context '{}': {} facts of {} tokens and {} tokens of hay, "
        "expected at least 2 facts and a whole block",
        needles.name, facts.size(), fixed_tokens, hay.size());
  }
  const size_t hay_tokens = total - fixed_tokens;
  ScoredText text{.name = needles.name, .context = {}, .continuations = {}};
  for (size_t i = 0; i < facts.size(); ++i) {
    text.context.insert(text.context.end(), facts[i].begin(), facts[i].end());
    if (i + 1 == facts.size()) break;
    const auto begin = hay.begin() + static_cast<ptrdiff_t>(hay_tokens * i / (facts.size() - 1));
    const auto end =
        hay.begin() + static_cast<ptrdiff_t>(hay_tokens * (i + 1) / (facts.size() - 1));
    text.context.insert(text.context.end(), begin, end);
  }
  text.context.insert(text.context.end(), first_turn.begin(), first_turn.end());
  for (size_t i = 0; i < needles.cases.size(); ++i) {
    if (i == asked_first) continue;
    const NeedleContext::Case& c = needles.cases[i];
    CAIRN_ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                           tokenize((second_turn ? kUserTurn : "") + Asked(c)));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<int32_t> answer, tokenize(c.answer));
    const size_t begin = tokens.size();
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    text.continuations.push_back({.tokens = std::move(tokens), .answer_begin = begin});
  }
  return text;
}

}  // namespace

Result<std::vector<ScoredText>> PlanFidelity(const FidelitySuite& suite, const FidelityShape& shape,
                                             const TokenizeFunction& tokenize) {
  std::vector<ScoredText> plan;
  for (const FidelityDocument& document : suite.documents) {
    CAIRN_ASSIGN_OR_RETURN(plan.emplace_back(), PlanDocument(document, shape, tokenize));
  }
  for (const NeedleContext& needles : suite.needles) {
    CAIRN_ASSIGN_OR_RETURN(plan.emplace_back(),
                           PlanNeedles(needles, suite.second_turn, shape, tokenize));
  }
  return plan;
}

std::string PlanJson(const std::string& suite, const std::string& split,
                     const std::vector<ScoredText>& plan) {
  Json out{{"suite", suite}, {"split", split}, {"texts", Json::array()}};
  for (const ScoredText& text : plan) {
    Json t{{"name", text.name}, {"context", text.context}, {"continuations", Json::array()}};
    for (const ScoredContinuation& c : text.continuations) {
      t["continuations"].push_back({{"tokens", c.tokens}, {"answer_begin", c.answer_begin}});
    }
    out["texts"].push_back(std::move(t));
  }
  return Dump(out) + "\n";
}

}  // namespace cairn::cli
