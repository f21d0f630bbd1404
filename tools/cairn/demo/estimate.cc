#include "tools/cairn/demo/estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/cairn/demo/report.h"

namespace cairn::cli {
namespace {

// All as measured with SmolLM2-135M, rounded.
// A token costs this much more for each token before it, in parts of one without any.
constexpr double kAttention = 1.0 / 3000;
// Tokens that are computed of a question whose text is fetched.
constexpr double kQuestionTokens = 50;
constexpr double kTurnTokens = 100;  // A turn of the chat: a message and its answer.
constexpr double kRestart = 0.5;     // Seconds to kill a node and connect to it again.
constexpr double kFetch = 0.2;       // Seconds of a row, not counting its tokens.
constexpr double kChatsAtOnce = 16;  // Chats at once.
constexpr double kSharedStep = 10;   // A token of all of them, in tokens of one.
constexpr double kRowsStep = 3;      // A token that reads rows, in tokens of one that does not.
constexpr double kRecipeKinds = 4;
constexpr double kRecipeRows = 2;
// Before that share of the work is done, the phases say less than the measurement.
constexpr double kTrusted = 0.1;

// The cost of `tokens` behind `before` others, in tokens without any before them.
double Cost(double before, double tokens) {
  return tokens * (1 + kAttention * (before + tokens / 2));
}

// Seconds of each kind of work.
struct Costs {
  explicit Costs(const DemoSpeed& speed, const DemoSize& size)
      : start(speed.start_s),
        token(speed.prompt_token_s * speed.measured_tokens /
              std::max(1.0, Cost(0, speed.measured_tokens))),
        answer(speed.answer_token_s * kComparedTokens),
        shared(Prompt(0, size.shared_tokens)),
        row(kFetch + Prompt(size.shared_tokens, kQuestionTokens) + answer) {}
  double Prompt(double before, double tokens) const { return token * Cost(before, tokens); }

  double start, token, answer;
  double shared;  // The shared text.
  double row;     // A question whose text is fetched.
};

}  // namespace

DemoEstimate::DemoEstimate(const DemoSpeed& speed, const DemoSize& size) {
  const Costs cost(speed, size);
  const double questions = size.questions, turns = size.turns;
  double chat = 0, cold_chat = cost.start;
  for (double turn = 0; turn < turns; ++turn) {
    const double before = size.chat_tokens + turn * kTurnTokens;
    cold_chat += cost.Prompt(0, before + kTurnTokens) + cost.answer;
    // The first turn computes the text. The text of a turn is computed once more behind it.
    chat += kFetch + (turn == 0 ? cost.Prompt(0, before) : 0) + cost.answer +
            2 * cost.Prompt(before, kTurnTokens);
  }
  const double long_question = cost.Prompt(size.shared_tokens, size.long_tokens);
  const double beyond = cost.Prompt(0, size.beyond_tokens);
  phases_ = {
      {"cold", questions * (cost.start + cost.shared + cost.answer)},
      {"cold chat", cold_chat},
      {"first push", 2 * cost.start + cost.shared},
      {"ram", questions * cost.row},
      {"other", questions * cost.row},
      {"chat", chat},
      {"together", cost.start + kChatsAtOnce * cost.Prompt(size.shared_tokens, kQuestionTokens) +
                       kSharedStep * cost.answer},
      {"long", 2 * (cost.start + cost.shared + 2 * long_question + 2 * cost.answer + cost.row)},
      {"beyond", 2 * cost.start + 2 * beyond + (1 + kRowsStep) * cost.answer},
      {"recipes", (1 + kRecipeKinds) * cost.start + cost.shared +
                      kRecipeKinds * std::min(questions, kRecipeRows) * cost.row}};
  if (!size.own_node) return;
  const double chat_again =
      cost.Prompt(0, size.chat_tokens + turns * kTurnTokens) + cost.answer + kFetch;
  phases_.push_back({"cluster", 2 * cost.start + 3 * cost.row + chat_again});
  phases_.push_back({"disk", questions * (kRestart + cost.row)});
  phases_.push_back(
      {"small arena", kRestart + questions * (cost.row + kFetch +
                                              cost.Prompt(size.chat_tokens, kQuestionTokens))});
}

double DemoEstimate::total_s() const {
  double total = 0;
  for (const Phase& phase : phases_) total += phase.seconds;
  return total;
}

double DemoEstimate::LeftFrom(std::string_view phase, double passed_s) const {
  double done = 0, left = 0;
  for (const Phase& one : phases_) {
    (left > 0 || one.name == phase ? left : done) += one.seconds;
  }
  return done <= kTrusted * total_s() ? left : left * passed_s / done;
}

uint32_t QuestionsWithin(double seconds, const DemoSpeed& speed, DemoSize size, uint32_t least) {
  while (size.questions > least && DemoEstimate(speed, size).total_s() > seconds) --size.questions;
  return size.questions;
}

std::string About(double seconds) {
  if (seconds < 95) return fmt::format("about {} s", 10 * std::max(1L, std::lround(seconds / 10)));
  const long minutes = std::lround(seconds / 60);
  if (minutes < 60) return fmt::format("about {} min", minutes);
  return fmt::format("about {} h {} min", minutes / 60, minutes % 60);
}

}  // namespace cairn::cli
