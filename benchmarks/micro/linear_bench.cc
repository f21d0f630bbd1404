// Products of several decode rows, compared with the same rows one at a time, one thread.
//
//   linear_bench [--json]
//
// The shapes are those of SmolLM2-135M with Q4_1 weights: 30 layers and the output matrix, one
// after the other, so that caches hold little. `tokens_to_one`: tokens per second over those of one
// row.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <random>
#include <vector>

#include "cairn/kernels/forward_kernels.h"

namespace cairn::kernels {
namespace {

constexpr int64_t kHidden = 576, kKv = 192, kFfn = 1536, kVocab = 49152, kLayers = 30;
constexpr int kTrials = 15;
constexpr int64_t kMostRows = 32;

// The time of this thread: neighbours that take the processor away do not count.
double ProcessorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Random weights of about 0.05.
PackedMatrix Random(int64_t rows, int64_t cols, std::mt19937* rng) {
  constexpr WeightType kType = WeightType::kQ4_1;
  const auto row_bytes = static_cast<size_t>(RowBytes(kType, cols));
  const auto block = static_cast<size_t>(BlockBytes(kType));
  PackedMatrix m(kType, rows, cols);
  std::vector<std::byte> bytes(row_bytes * kPanelRows);
  for (int64_t panel = 0; panel < m.panels(); ++panel) {
    for (std::byte& b : bytes) b = static_cast<std::byte>((*rng)());
    const uint16_t scale = 0x1e00, minimum = 0xaa00;  // 0.006 and -0.047 as binary16.
    for (size_t at = 0; at < bytes.size(); at += block) {
      std::memcpy(bytes.data() + at, &scale, 2);
      std::memcpy(bytes.data() + at + 2, &minimum, 2);
    }
    const std::byte* pointers[kPanelRows];
    for (size_t i = 0; i < kPanelRows; ++i) pointers[i] = bytes.data() + i * row_bytes;
    m.PackPanel(panel, pointers);
  }
  return m;
}

class Products {
 public:
  Products() {
    std::mt19937 rng(1);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (const int64_t outputs : {kHidden, kKv, kKv, kHidden, kFfn, kFfn}) {
        matrices_.push_back(Random(outputs, kHidden, &rng));
      }
      matrices_.push_back(Random(kHidden, kFfn, &rng));
    }
    matrices_.push_back(Random(kVocab, kHidden, &rng));
    std::normal_distribution<float> normal;
    x_.resize(static_cast<size_t>(kMostRows * kFfn));
    for (float& x : x_) x = normal(rng);
    y_.resize(static_cast<size_t>(kMostRows * kVocab));
    activation_.resize(static_cast<size_t>(kMostRows) * ActivationBytes(kFfn));
  }

  // Seconds of all products of `rows` tokens.
  double Run(const ForwardKernels& kernels, int64_t rows, bool integers) {
    InlineStream stream;
    const double begin = ProcessorSeconds();
    for (const PackedMatrix& w : matrices_) {
      MatVecArgs a;
      a.w = w;
      a.x = x_.data();
      a.x_stride = kFfn;
      a.activation_stride = static_cast<int64_t>(ActivationBytes(kFfn));
      for (int64_t r = 0; integers && r < rows; ++r) {
        kernels.prepare_activation(
            stream, {x_.data() + r * kFfn, w.cols(), activation_.data() + r * a.activation_stride});
      }
      a.activation = integers ? activation_.data() : nullptr;
      a.y = y_.data();
      a.y_stride = kVocab;
      a.rows = rows;
      a.panel_end = w.panels();
      kernels.mat_vec(stream, a);
    }
    return ProcessorSeconds() - begin;
  }

 private:
  std::vector<PackedMatrix> matrices_;
  std::vector<float> x_, y_;
  std::vector<std::byte> activation_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Main(bool json) {
  const ForwardKernels& kernels = CpuForwardKernels(BestIsa());
  Products products;
  const std::vector<int64_t> counts = {1, 2, 4, 8, 16, 32};
  for (const bool integers : {true, false}) {
    if (integers && kernels.prepare_activation == nullptr) continue;
    std::vector<std::vector<double>> seconds(counts.size());
    for (int trial = 0; trial < kTrials; ++trial) {
      for (size_t i = 0; i < counts.size(); ++i) {  // In turn.
        seconds[i].push_back(products.Run(kernels, counts[i], integers));
      }
    }
    for (size_t i = 0; i < counts.size(); ++i) {
      // Against one row of the same trial: neighbours come and go.
      std::vector<double> more;
      for (size_t trial = 0; trial < seconds[i].size(); ++trial) {
        more.push_back(static_cast<double>(counts[i]) * seconds[0][trial] / seconds[i][trial]);
      }
      std::printf(json ? "{\"arithmetic\": \"%s\", \"isa\": \"%s\", \"rows\": %lld, \"ms\": %.4f, "
                         "\"tokens_to_one\": %.3f}\n"
                       : "%-8s %s  %2lld rows  %8.3f ms  %5.2f x the tokens of one row\n",
                  integers ? "integers" : "float32", kernels.name,
                  static_cast<long long>(counts[i]), Median(seconds[i]) * 1e3, Median(more));
    }
  }
  return 0;
}

}  // namespace
}  // namespace cairn::kernels

int main(int argc, char** argv) {
  return cairn::kernels::Main(argc > 1 && std::strcmp(argv[1], "--json") == 0);
}
