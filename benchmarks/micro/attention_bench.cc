// Decode attention of one layer over a ragged prefix, compared with the same over whole pages, one
// thread.
//
//   attention_bench [--json]
//
// The shape is SmolLM2-135M's: 30 layers of 3 KV heads of 64 dimensions, 3 query heads each. All
// layers in turn, so that caches hold little. full: 4,096 tokens in pages. ragged: 8,192 tokens of
// which a selection kept as many rows in all, another number in each head. quarter: 4,096 tokens of
// which it kept a quarter. shared: the parts of 16 rows over the same 4,096 tokens, read once for
// all of them, against each row alone.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <vector>

#include "cairn/kernels/forward_kernels.h"
#include "services/worker/compute/kv_view.h"

namespace cairn::kernels {
namespace {

constexpr int64_t kHeads = 3, kGroup = 3, kDim = 64, kLayers = 30, kTokens = 4096;
constexpr int64_t kSplit = 256;
constexpr int kTrials = 25;

constexpr worker::KvLayout kKv{
    .layers = kLayers, .kv_heads = kHeads, .head_dim = kDim, .block_tokens = 64};

// The time of this thread: neighbours that take the processor away do not count.
double ProcessorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// A sequence of which each head keeps some rows, or whose pages hold all.
class Sequence {
 public:
  // `keep`: rows of each head of each layer; empty: all.
  Sequence(worker::KvPool* pool, int64_t tokens, const std::vector<int64_t>& keep,
           std::mt19937* rng)
      : sequence_(pool->NewSequence()), tokens_(tokens) {
    if (!sequence_.Reserve(tokens).ok()) std::abort();
    for (int64_t page = 0; page < sequence_.page_count(); ++page) {
      for (int layer = 0; layer < kLayers; ++layer) {
        const auto slice = sequence_.LayerSlice(page, layer);
        auto* numbers = reinterpret_cast<uint16_t*>(slice.data());
        for (size_t i = 0; i < slice.size() / 2; ++i) {
          numbers[i] = static_cast<uint16_t>(0x2c00 + (*rng)() % 0x800);
        }
      }
    }
    sequence_.SetLength(tokens);
    if (keep.empty()) return;
    sequence_.Compact([&](int layer, int head) {
      const int64_t count = keep[static_cast<size_t>(layer * kHeads + head)];
      std::vector<int32_t> rows;
      for (int64_t i = 0; i < count; ++i) rows.push_back(static_cast<int32_t>(i * tokens / count));
      return rows;
    });
  }
  PagedKv View(int layer, int head) const {
    return sequence_.prefix() == nullptr ? worker::PagesView(sequence_, layer)
                                         : worker::PrefixView(*sequence_.prefix(), layer, head);
  }
  int64_t Count(int layer, int head) const {
    return sequence_.prefix() == nullptr ? tokens_ : sequence_.prefix()->rows(layer, head);
  }
  double Bytes() const {
    const int64_t rows =
        sequence_.prefix() == nullptr ? tokens_ * kLayers * kHeads : sequence_.prefix()->rows();
    return static_cast<double>(rows) * kDim * 4;
  }

 private:
  worker::KvSequence sequence_;
  const int64_t tokens_;
};

// One call for the tokens from `begin` to `end`; the results go to place `row` of each vector.
struct Results {
  std::vector<float> acc, max, sum;
  std::vector<std::byte> scratch;

  Results(int64_t rows, int64_t rows_a_call)
      : acc(static_cast<size_t>(rows * kGroup * kDim)),
        max(static_cast<size_t>(rows * kGroup)),
        sum(max.size()),
        scratch(AttentionPartScratchBytes(kSplit, rows_a_call * kGroup, kDim) + 64) {}

  AttentionPartArgs Part(const Sequence& rows, int layer, int head, const std::vector<float>& q,
                         int64_t begin, int64_t end, int64_t row) {
    AttentionPartArgs a;
    a.kv = rows.View(layer, head);
    a.q = q.data();
    a.kv_head = head;
    a.group = kGroup;
    a.begin = begin;
    a.end = end;
    a.scale = 0.125f;
    a.acc = acc.data() + row * kGroup * kDim;
    a.max = max.data() + row * kGroup;
    a.sum = sum.data() + row * kGroup;
    a.scratch = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) &
                                             ~uintptr_t{63});
    return a;
  }
};

// Seconds of one token's attention in all layers.
double Token(const ForwardKernels& kernels, const Sequence& rows, const std::vector<float>& q) {
  Results results(kTokens * 2 / kSplit, 1);
  std::vector<float> out(kGroup * kDim);
  InlineStream stream;
  const double begin = ProcessorSeconds();
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kHeads; ++head) {
      const int64_t count = rows.Count(layer, head);
      int64_t parts = 0;
      for (int64_t t = 0; t < count; t += kSplit, ++parts) {
        kernels.attention_part(
            stream, results.Part(rows, layer, head, q, t, std::min(count, t + kSplit), parts));
      }
      if (parts > 0) {
        kernels.attention_merge(stream, {results.acc.data(), results.max.data(), results.sum.data(),
                                         out.data(), parts, kGroup, kDim});
      }
    }
  }
  return ProcessorSeconds() - begin;
}

// Seconds of the parts of kRows tokens that share pages, `step` rows a call.
constexpr int64_t kRows = 16;
double Shared(const ForwardKernels& kernels, const Sequence& pages, const std::vector<float>& q,
              int64_t step) {
  Results results(kRows, kRows);
  InlineStream stream;
  const double begin = ProcessorSeconds();
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int64_t r = 0; r < kRows; r += step) {
      for (int head = 0; head < kHeads; ++head) {
        for (int64_t t = 0; t < kTokens; t += kSplit) {
          AttentionPartArgs a = results.Part(pages, layer, head, q, t, t + kSplit, r);
          a.rows = step;
          a.row_stride = kGroup;
          kernels.attention_part(stream, a);
        }
      }
    }
  }
  return ProcessorSeconds() - begin;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Main(bool json) {
  std::mt19937 rng(1);
  const ForwardKernels& kernels = CpuForwardKernels(BestIsa());
  std::vector<float> q(kHeads * kGroup * kDim);
  std::normal_distribution<float> normal;
  for (float& x : q) x = normal(rng);
  std::vector<int64_t> ragged, quarter;
  for (int64_t i = 0; i < kLayers * kHeads; ++i) {
    // Up to a third more or less, and the same in all.
    const int64_t off =
        i % 2 == 0 ? static_cast<int64_t>(rng() % (kTokens / 3)) : kTokens - ragged.back();
    ragged.push_back(kTokens + off);
    quarter.push_back((kTokens + off) / 4);
  }
  const auto pool = worker::KvPool::Create(kKv, 300 * kKv.page_bytes());
  if (!pool.ok()) return 1;
  const Sequence pages(pool->get(), kTokens, {}, &rng);
  const Sequence units(pool->get(), 2 * kTokens, ragged, &rng);
  const Sequence kept(pool->get(), kTokens, quarter, &rng);
  const Sequence* all[] = {&pages, &units, &kept};
  const char* names[] = {"full", "ragged", "quarter"};
  std::vector<double> seconds[3];
  for (int trial = 0; trial < kTrials; ++trial) {
    for (int i = 0; i < 3; ++i) seconds[i].push_back(Token(kernels, *all[i], q));  // In turn.
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
                names[i], kernels.name, token * 1e3, all[i]->Bytes() / token / 1e9, times,
                bandwidth);
  }
  std::vector<double> alone, together, faster;
  for (int trial = 0; trial < kTrials / 2; ++trial) {
    alone.push_back(Shared(kernels, pages, q, 1));
    together.push_back(Shared(kernels, pages, q, kRows));
    faster.push_back(alone.back() / together.back());
  }
  std::printf(json ? "{\"case\": \"shared\", \"isa\": \"%s\", \"rows\": %d, \"ms\": %.4f, "
                     "\"times_faster_than_alone\": %.3f}\n"
                   : "shared   %s  %d rows  %8.3f ms a step  %5.2f x as fast as each row alone\n",
              kernels.name, static_cast<int>(kRows), Median(together) * 1e3, Median(faster));
  return 0;
}

}  // namespace
}  // namespace cairn::kernels

int main(int argc, char** argv) {
  return cairn::kernels::Main(argc > 1 && std::strcmp(argv[1], "--json") == 0);
}
