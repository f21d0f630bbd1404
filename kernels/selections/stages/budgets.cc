#include "kernels/selections/stages/budgets.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/selections/budget.h"

namespace cairn::selections {
namespace {

// Nearest integer to a / b, to even. REQUIRES: a >= 0, b > 0.
int64_t RoundedRatio(int64_t a, int64_t b) {
  const int64_t whole = a / b, twice = a % b * 2;
  return whole + (twice > b || (twice == b && whole % 2 == 1) ? 1 : 0);
}

std::vector<int64_t> Even(const BudgetQuestion& q) {
  return std::vector<int64_t>(static_cast<size_t>(q.layers), RowsToKeep(q.tokens, q.keep));
}

int64_t Marked(std::span<const uint8_t> marks) {
  return std::accumulate(marks.begin(), marks.end(), int64_t{0});
}

std::vector<int64_t> CountHeads(const Marks& marks) {
  std::vector<int64_t> rows;
  for (int32_t layer = 0; layer < marks.layers(); ++layer) {
    for (int32_t head = 0; head < marks.heads(); ++head) {
      rows.push_back(Marked(marks.Head(layer, head)));
    }
  }
  return rows;
}

// Of units (layers, or heads) that have `total` rows together: the first ones of `order` keep all
// `tokens`, the others `few`, and what is left over goes to the one between. REQUIRES: few <
// tokens, few * units <= total <= tokens * units.
std::vector<int64_t> WholeOrFew(std::span<const size_t> order, int64_t tokens, int64_t few,
                                int64_t total) {
  const int64_t more = total - std::ssize(order) * few;
  const auto whole = static_cast<size_t>(more / (tokens - few));
  std::vector<int64_t> rows(order.size(), few);
  for (size_t rank = 0; rank < whole; ++rank) rows[order[rank]] = tokens;
  if (whole < order.size()) rows[order[whole]] += more % (tokens - few);
  return rows;
}

}  // namespace

LayerBudget EvenLayers() { return Even; }

LayerBudget PyramidLayers(int64_t window, int64_t beta) {
  return [=](const BudgetQuestion& q) {
    if (q.layers == 1) return Even(q);
    // In units of 1 / (kKeepUnits * beta) rows, so that nothing is rounded before the end.
    const int64_t unit = kKeepUnits * beta;
    const int64_t mean = q.tokens * q.keep * beta;
    int64_t least = q.tokens * q.keep;
    int64_t most = 2 * mean - least;
    if (most >= (q.tokens - window) * unit) {
      most = (q.tokens - window) * unit;
      least = 2 * mean - most;
    }
    if (q.tokens * unit < most || most < least || least < window * unit) return Even(q);
    std::vector<int64_t> rows;
    rows.reserve(static_cast<size_t>(q.layers));
    for (int32_t layer = 0; layer < q.layers; ++layer) {
      rows.push_back(
          RoundedRatio(most * (q.layers - 1) - layer * (most - least), unit * (q.layers - 1)));
    }
    return rows;
  };
}

LayerBudget WeightedLayers(int64_t window) {
  return [=](const BudgetQuestion& q) {
    const int64_t ranked = q.tokens - window;
    const int64_t total = std::clamp((RowsToKeep(q.tokens, q.keep) - window) * q.layers,
                                     int64_t{q.layers}, ranked * q.layers);
    const double all = std::accumulate(q.layer_weights.begin(), q.layer_weights.end(), 0.0);
    std::vector<int64_t> rows;
    for (const double weight : q.layer_weights) {
      const double share = static_cast<double>(total) * (weight / all);
      // A share that is not a number (all weights 0) fails this comparison.
      const bool fits = share < static_cast<double>(ranked);
      rows.push_back(fits ? std::max<int64_t>(1, static_cast<int64_t>(share)) : ranked);
    }
    int64_t sum = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    for (size_t layer = 0; sum != total; layer = (layer + 1) % rows.size()) {
      const int64_t step = sum < total ? 1 : -1;
      if (rows[layer] + step < 1 || rows[layer] + step > ranked) continue;
      rows[layer] += step;
      sum += step;
    }
    for (int64_t& r : rows) r += window;
    return rows;
  };
}

LayerBudget LazyLayers(int64_t sinks, int64_t recent) {
  return [=](const BudgetQuestion& q) {
    const int64_t even = RowsToKeep(q.tokens, q.keep);
    const int64_t few = std::min(sinks + recent, even);
    if (few >= q.tokens) return Even(q);
    std::vector<size_t> order(static_cast<size_t>(q.layers));
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return q.layer_weights[a] < q.layer_weights[b]; });
    return WholeOrFew(order, q.tokens, few, even * q.layers);
  };
}

HeadSplit EvenHeads() {
  return [](const SplitQuestion& q) {
    std::vector<int64_t> rows;
    for (const int64_t r : q.rows) {
      rows.insert(rows.end(), static_cast<size_t>(q.scores.heads()), r);
    }
    return rows;
  };
}

HeadSplit AdaptiveHeads(int64_t alpha) {
  return [=](const SplitQuestion& q) {
    Marks taken = q.marks;
    for (int32_t layer = 0; layer < taken.layers(); ++layer) {
      const int64_t rows = q.rows[static_cast<size_t>(layer)];
      for (int32_t head = 0; head < taken.heads(); ++head) {
        const std::span<uint8_t> marks = taken.Head(layer, head);
        q.kernels.mark_top(q.stream, {q.scores.Head(layer, head).data(), taken.tokens(),
                                      SafeRows(rows, alpha) - Marked(marks), marks.data()});
      }
      const std::span<uint8_t> marks = taken.Layer(layer);
      q.kernels.mark_top(q.stream,
                         {q.scores.Layer(layer).data(), static_cast<int64_t>(marks.size()),
                          rows * taken.heads() - Marked(marks), marks.data()});
    }
    return CountHeads(taken);
  };
}

HeadSplit WholeModel() {
  return [](const SplitQuestion& q) {
    Marks taken = q.marks;
    const int64_t rows = std::accumulate(q.rows.begin(), q.rows.end(), int64_t{0});
    const std::span<uint8_t> marks = taken.All();
    q.kernels.mark_top(q.stream, {q.scores.Layer(0).data(), static_cast<int64_t>(marks.size()),
                                  rows * taken.heads() - Marked(marks), marks.data()});
    return CountHeads(taken);
  };
}

HeadSplit RankedHeads(HeadScores scores, int64_t recent) {
  return [scores = std::move(scores), recent](const SplitQuestion& q) {
    const int64_t heads = q.marks.heads(), tokens = q.marks.tokens();
    const int64_t total = heads * std::accumulate(q.rows.begin(), q.rows.end(), int64_t{0});
    const int64_t even = total / (heads * q.marks.layers());
    const int64_t few = std::min(Marked(q.marks.Head(0, 0)) + recent, even);
    const bool of_this = scores.layers == q.marks.layers() && scores.kv_heads == heads;
    if (!of_this || few >= tokens) return EvenHeads()(q);
    std::vector<size_t> order(scores.scores.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return scores.scores[a] > scores.scores[b]; });
    return WholeOrFew(order, tokens, few, total);
  };
}

}  // namespace cairn::selections
