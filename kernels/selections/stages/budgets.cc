#include "kernels/selections/stages/budgets.h"

#include <algorithm>
#include <functional>
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

// Budgets of units (layers, or heads) that have `total` rows together: the first ones of `order`
// keep all `tokens`, the others `few`, and the rest goes to the one between. REQUIRES: few <
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

// Steps from `most` to `least` in units of 1 / unit rows, first layer first, and `more` rows each.
std::vector<int64_t> Falling(int64_t most, int64_t least, int64_t unit, int32_t layers,
                             int64_t more) {
  std::vector<int64_t> rows;
  rows.reserve(static_cast<size_t>(layers));
  for (int32_t layer = 0; layer < layers; ++layer) {
    rows.push_back(more +
                   RoundedRatio(most * (layers - 1) - layer * (most - least), unit * (layers - 1)));
  }
  return rows;
}

std::vector<int64_t> PyramidBeside(const BudgetQuestion& q, int64_t window, int64_t beta) {
  const int64_t mean = RowsToKeep(q.tokens, q.keep) - window;
  const int64_t ranked = q.tokens - window;
  if (mean <= 0 || mean >= ranked) return Even(q);  // The window alone, or everything.
  int64_t least = std::max<int64_t>(1, mean / beta);
  int64_t most = 2 * mean - least;
  if (most > ranked) {
    most = ranked;
    least = 2 * mean - most;
  }
  return Falling(most, least, 1, q.layers, window);
}

// Adds one row at a time, first to the largest remainders, until all `total` rows are given. If
// remainders are equal, the earlier unit gets the row. REQUIRES: fewer rows are missing than units.
void GiveRemainders(std::span<int64_t> rows, std::span<const int64_t> remainders, int64_t total) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  int64_t missing = total - std::accumulate(rows.begin(), rows.end(), int64_t{0});
  for (size_t i = 0; missing > 0; ++i, --missing) ++rows[order[i]];
}

}  // namespace

LayerBudget EvenLayers() { return Even; }

LayerBudget PyramidLayers(int64_t window, int64_t beta, bool beside) {
  return [=](const BudgetQuestion& q) {
    if (q.layers == 1) return Even(q);
    if (beside) return PyramidBeside(q, window, beta);
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
    return Falling(most, least, unit, q.layers, 0);
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

LayerBudget PrefixLayers() {
  return [](const BudgetQuestion& q) {
    const int64_t marked = Marked(q.marks->Head(0, 0));
    const int64_t total = (RowsToKeep(q.tokens, q.keep) - marked) * q.layers;
    if (total <= 0) return Even(q);
    struct Row {
      double before;  // The share of its layer's sum that lies before it.
      int32_t layer;
    };
    std::vector<Row> all;
    for (int32_t layer = 0; layer < q.layers; ++layer) {
      const std::span<const float> head = q.scores->Head(layer, 0);
      std::vector<float> sorted(head.begin(), head.end());
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      const double sum = std::accumulate(sorted.begin(), sorted.end(), 0.0);
      double before = 0;
      // Marked rows are in the sum, but a layer has only the others to give.
      for (int64_t row = 0; row < q.tokens - marked; ++row) {
        all.push_back({sum > 0 ? before / sum : 0, layer});
        before += static_cast<double>(sorted[static_cast<size_t>(row)]);
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Row& a, const Row& b) { return a.before < b.before; });
    std::vector<int64_t> rows(static_cast<size_t>(q.layers), marked);
    for (int64_t i = 0; i < total; ++i) {
      ++rows[static_cast<size_t>(all[static_cast<size_t>(i)].layer)];
    }
    return rows;
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

HeadSplit FlooredHeads(int64_t alpha) {
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

HeadSplit MixedHeads(int64_t alpha) {
  return [=](const SplitQuestion& q) {
    Marks taken = q.marks;
    std::vector<int64_t> split;
    for (int32_t layer = 0; layer < taken.layers(); ++layer) {
      const auto heads = static_cast<size_t>(taken.heads());
      const int64_t all = q.rows[static_cast<size_t>(layer)] * taken.heads();
      std::vector<int64_t> marked, rows, remainders;
      for (int32_t head = 0; head < taken.heads(); ++head) {
        marked.push_back(Marked(taken.Head(layer, head)));
      }
      const int64_t beside = all - std::accumulate(marked.begin(), marked.end(), int64_t{0});
      const std::span<uint8_t> marks = taken.Layer(layer);
      q.kernels.mark_top(q.stream, {q.scores.Layer(layer).data(),
                                    static_cast<int64_t>(marks.size()), beside, marks.data()});
      for (size_t head = 0; head < heads; ++head) {
        const int64_t won = Marked(taken.Head(layer, static_cast<int32_t>(head))) - marked[head];
        const int64_t even = q.rows[static_cast<size_t>(layer)] - marked[head];
        const int64_t parts = (1000 - alpha) * won + alpha * even;
        rows.push_back(parts / 1000);
        remainders.push_back(parts % 1000);
      }
      GiveRemainders(rows, remainders, beside);
      for (size_t head = 0; head < heads; ++head) split.push_back(rows[head] + marked[head]);
    }
    return split;
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

HeadSplit ScoredHeads(HeadScores scores, int64_t beta) {
  return [scores = std::move(scores), beta](const SplitQuestion& q) {
    const auto heads = static_cast<size_t>(q.marks.heads());
    double sum = 0;
    for (const float s : scores.scores) sum += std::max(0.0, static_cast<double>(s));
    const bool of_this = scores.layers == q.marks.layers() && scores.kv_heads == q.marks.heads();
    if (!of_this || sum <= 0) return EvenHeads()(q);
    std::vector<int64_t> marked = CountHeads(q.marks);
    int64_t total = 0;
    for (size_t i = 0; i < marked.size(); ++i) total += q.rows[i / heads] - marked[i];
    const double pool = static_cast<double>(total) * 1000 / static_cast<double>(beta);
    std::vector<int64_t> rows(marked.size()), order(marked.size());
    std::vector<double> remainders(marked.size());
    int64_t given = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto even = static_cast<double>(q.rows[i / heads] - marked[i]);
      const double score = std::max(0.0, static_cast<double>(scores.scores[i]));
      const double share = even - even * 1000 / static_cast<double>(beta) + pool * (score / sum);
      const int64_t most = q.marks.tokens() - marked[i];
      rows[i] = std::clamp<int64_t>(static_cast<int64_t>(share), 0, most);
      remainders[i] = share - static_cast<double>(rows[i]);
      given += rows[i];
      order[i] = static_cast<int64_t>(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return remainders[static_cast<size_t>(a)] > remainders[static_cast<size_t>(b)];
    });
    // Fractions first; what full heads left over goes round, most wanted first.
    for (size_t at = 0; given < total; at = (at + 1) % order.size()) {
      const auto i = static_cast<size_t>(order[at]);
      if (rows[i] >= q.marks.tokens() - marked[i]) continue;
      ++rows[i];
      ++given;
    }
    for (size_t i = 0; i < rows.size(); ++i) rows[i] += marked[i];
    return rows;
  };
}

}  // namespace cairn::selections
