// Decode attention of one layer over a ragged prefix beside the same over whole pages, one thread.
//
//   attention_bench [--json]
//
// The shape is SmolLM2-135M's: 3 KV heads of 64 dimensions, 3 query heads each, 4,096 tokens. KV
// lies in pages or units in a random order, in all layers of the model in turn, so that caches hold
// none of it. full: pages of 64 tokens. ragged: units of 32 rows, heads with different numbers of
// rows, as many in all. quarter: a quarter of them.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/include/cairn/kernels/backend.h"

namespace cairn::kernels {
namespace {

constexpr int64_t kHeads = 3, kGroup = 3, kDim = 64, kLayers = 30, kTokens = 4096;
constexpr int64_t kPage = 64, kUnit = 32, kSplit = 256;
constexpr int kTrials = 25;

// Rows of each head of each layer in pieces of `piece` rows, all of them scattered over one buffer.
class Rows {
 public:
  Rows(const std::vector<int64_t>& rows, int64_t piece, std::mt19937* rng)
      : rows_(rows), piece_(piece) {
    int64_t pieces = 0;
    for (const int64_t n : rows) pieces += (n + piece - 1) / piece;
    const auto numbers = static_cast<size_t>(2 * piece * kDim);
    data_.assign(static_cast<size_t>(pieces) * numbers, 0);
    for (uint16_t& x : data_) x = static_cast<uint16_t>(0x2c00 + (*rng)() % 0x800);
    std::vector<size_t> order(static_cast<size_t>(pieces));
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), *rng);
    size_t next = 0;
    for (const int64_t n : rows) {
      auto& of_head = places_.emplace_back();
      for (int64_t r = 0; r < n; r += piece) {
        of_head.push_back(
            reinterpret_cast<const std::byte*>(data_.data() + order[next++] * numbers));
      }
    }
  }
  PagedKv View(int64_t layer, int64_t head) const {
    PagedKv kv;
    kv.pages = places_[static_cast<size_t>(layer * kHeads + head)].data();
    kv.block_tokens = piece_;
    kv.head_dim = kDim;
    kv.v_offset = static_cast<size_t>(piece_ * kDim) * 2;
    return kv;
  }
  int64_t Count(int64_t layer, int64_t head) const {
    return rows_[static_cast<size_t>(layer * kHeads + head)];
  }
  double Bytes() const {
    return static_cast<double>(std::accumulate(rows_.begin(), rows_.end(), int64_t{0})) * kDim * 4;
  }

 private:
  std::vector<int64_t> rows_;
  int64_t piece_;
  std::vector<uint16_t> data_;
  std::vector<std::vector<const std::byte*>> places_;
};

// Seconds of one token's attention in all layers.
double Token(const Backend& backend, const Rows& rows, const std::vector<float>& q) {
  std::vector<float> acc(kGroup * kDim * (kTokens * 2 / kSplit)), max(acc.size()), sum(acc.size()),
      out(kGroup * kDim);
  std::vector<std::byte> scratch(AttentionPartScratchBytes(kSplit, kGroup) + 64);
  auto* aligned = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) &
                                               ~uintptr_t{63});
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (int64_t head = 0; head < kHeads; ++head) {
      const int64_t count = rows.Count(layer, head);
      int64_t parts = 0;
      for (int64_t t = 0; t < count; t += kSplit, ++parts) {
        AttentionPartArgs a;
        a.kv = rows.View(layer, head);
        a.q = q.data();
        a.kv_head = head;
        a.group = kGroup;
        a.begin = t;
        a.end = std::min(count, t + kSplit);
        a.scale = 0.125f;
        a.acc = acc.data() + parts * kGroup * kDim;
        a.max = max.data() + parts * kGroup;
        a.sum = sum.data() + parts * kGroup;
        a.scratch = aligned;
        backend.attention_part(a);
      }
      if (parts > 0) {
        backend.attention_merge(
            {acc.data(), max.data(), sum.data(), out.data(), parts, kGroup, kDim});
      }
    }
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Main(bool json) {
  std::mt19937 rng(1);
  const Backend& backend = CpuBackend(BestIsa());
  std::vector<float> q(kHeads * kGroup * kDim);
  std::normal_distribution<float> normal;
  for (float& x : q) x = normal(rng);
  std::vector<int64_t> full(kLayers * kHeads, kTokens), ragged, quarter;
  for (int64_t i = 0; i < kLayers * kHeads; ++i) {
    // Up to a third more or less, and the same in all.
    const int64_t off =
        i % 2 == 0 ? static_cast<int64_t>(rng() % (kTokens / 3)) : kTokens - ragged.back();
    ragged.push_back(kTokens + off);
    quarter.push_back((kTokens + off) / 4);
  }
  const Rows pages(full, kPage, &rng), units(ragged, kUnit, &rng), kept(quarter, kUnit, &rng);
  const Rows* all[] = {&pages, &units, &kept};
  const char* names[] = {"full", "ragged", "quarter"};
  std::vector<double> seconds[3];
  for (int trial = 0; trial < kTrials; ++trial) {
    for (int i = 0; i < 3; ++i) seconds[i].push_back(Token(backend, *all[i], q));  // In turn.
  }
  for (int i = 0; i < 3; ++i) {
    // Against `full` of the same trial: neighbours come and go.
    std::vector<double> faster;
    for (int trial = 0; trial < kTrials; ++trial) {
      faster.push_back(seconds[0][static_cast<size_t>(trial)] /
                       seconds[i][static_cast<size_t>(trial)]);
    }
    const double token = Median(seconds[i]);
    const double times = Median(faster);
    const double bandwidth = times * all[i]->Bytes() / pages.Bytes();
    std::printf(json ? "{\"case\": \"%s\", \"isa\": \"%s\", \"ms\": %.4f, \"gb_per_s\": %.3f, "
                       "\"times_faster_than_full\": %.3f, \"bandwidth_to_full\": %.3f}\n"
                     : "%-8s %s  %8.3f ms a token  %6.2f GB/s  %5.2f x as fast as full  %4.2f of "
                       "its bandwidth\n",
                names[i], backend.name, token * 1e3, all[i]->Bytes() / token / 1e9, times,
                bandwidth);
  }
  return 0;
}

}  // namespace
}  // namespace cairn::kernels

int main(int argc, char** argv) {
  return cairn::kernels::Main(argc > 1 && std::strcmp(argv[1], "--json") == 0);
}
