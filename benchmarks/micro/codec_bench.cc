// Encoding and decoding of slices from memory to memory, one thread, next to memref: libc's memcpy
// of 1 MiB blocks between two 256 MiB buffers, taken before and after each trial in this process.
//
//   codec_bench [--json] [--only NAME]
//
// A slice has the shape of SmolLM2-135M (3 KV heads, 64 tokens, 64 dimensions). Rates count the
// half precision side. Results are checked once before timing.

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/codecs/registry.h"
#include "tests/support/half.h"

namespace cairn::codecs {
namespace {

using cairn::testing::Half;

constexpr size_t kBufferBytes = 256 << 20;
constexpr size_t kCopyBytes = 1 << 20;
constexpr int64_t kHeads = 3, kTokens = 64, kDim = 64;
constexpr int64_t kPlaneNumbers = kHeads * kTokens * kDim;
constexpr size_t kSliceBytes = 4 * kPlaneNumbers;
constexpr int kTrials = 5;

struct Case {
  const char* label;
  const char* codec;
  std::vector<int64_t> values;
  // Numbers per trial are fewer for slow codecs: a trial takes about as long as memref's.
  size_t slices;
};

const Case kCases[] = {
    {"int8", "int8", {64, 0}, kBufferBytes / kSliceBytes},
    {"int4", "int4", {64, 1}, kBufferBytes / kSliceBytes},
    {"turbo4", "turbo", {4, 4, 1}, kBufferBytes / kSliceBytes},
    {"turbo3", "turbo", {3, 3, 1}, kBufferBytes / kSliceBytes},
    {"turbo2", "turbo", {2, 2, 1}, kBufferBytes / kSliceBytes},
    {"fp8", "fp8", {0}, kBufferBytes / kSliceBytes},
    {"cachegen", "cachegen", {12, 24, 1}, kBufferBytes / kSliceBytes / 8},
};

class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) std::abort();
    madvise(data_, bytes, MADV_HUGEPAGE);
    std::memset(data_, 1, bytes);
  }
  ~Buffer() { munmap(data_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* get() const { return static_cast<std::byte*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

double Seconds(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

class Bench {
 public:
  Bench() : from_(kBufferBytes), to_(kBufferBytes), encoded_(kBufferBytes) {
    // Keys have channels that are ten times larger than others; the period is a prime, so no two
    // slices are alike.
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    std::vector<Half> pattern(1048573);
    for (size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<Half>(normal(rng));
    auto* numbers = reinterpret_cast<Half*>(from_.get());
    for (size_t i = 0; i < kBufferBytes / 2; ++i) {
      numbers[i] = pattern[i % pattern.size()] * (i % 64 == 60 ? Half(8) : Half(1));
    }
  }

  double MemrefGbps() {
    const double s = Seconds([&] {
      for (size_t at = 0; at < kBufferBytes; at += kCopyBytes) {
        std::memcpy(to_.get() + at, from_.get() + at, kCopyBytes);
      }
    });
    return kBufferBytes / s / 1e9;
  }

  bool Run(const Case& c) {
    codec_ = MakeCodec(c.codec, c.values);
    scratch_.resize(codec_->ScratchBytes(kShape));
    stride_ = (codec_->MaxEncodedBytes(kShape, {0, 0}) + 63) / 64 * 64;
    lengths_.assign(c.slices, 0);
    if (!Encode(c.slices) || !Decode(c.slices)) return false;
    double error = 0, all = 0;
    const auto* x = reinterpret_cast<const Half*>(from_.get());
    const auto* y = reinterpret_cast<const Half*>(to_.get());
    for (size_t i = 0; i < c.slices * kSliceBytes / 2; ++i) {
      const double want = static_cast<float>(x[i]), e = static_cast<float>(y[i]) - want;
      error += e * e;
      all += want * want;
    }
    if (!(std::sqrt(error / all) < 0.5)) return false;
    double bytes = 0;
    for (const size_t length : lengths_) bytes += static_cast<double>(length);
    error_ = std::sqrt(error / all);
    bits_ = bytes * 8 / (static_cast<double>(c.slices) * kSliceBytes / 2);
    encode_.clear();
    decode_.clear();
    encode_gbps_.clear();
    decode_gbps_.clear();
    for (int t = 0; t < kTrials; ++t) {
      const double payload = static_cast<double>(c.slices * kSliceBytes) / 1e9;
      const double m0 = MemrefGbps();
      const double e = payload / Seconds([&] { Encode(c.slices); });
      const double m1 = MemrefGbps();
      const double d = payload / Seconds([&] { Decode(c.slices); });
      const double m2 = MemrefGbps();
      encode_.push_back(e / ((m0 + m1) / 2));
      decode_.push_back(d / ((m1 + m2) / 2));
      encode_gbps_.push_back(e);
      decode_gbps_.push_back(d);
      memref_.push_back(m1);
    }
    return true;
  }

  double bits() const { return bits_; }
  double error() const { return error_; }
  const std::vector<double>& encode() const { return encode_; }
  const std::vector<double>& decode() const { return decode_; }
  const std::vector<double>& encode_gbps() const { return encode_gbps_; }
  const std::vector<double>& decode_gbps() const { return decode_gbps_; }
  const std::vector<double>& memref() const { return memref_; }

 private:
  static constexpr SliceShape kShape{kTokens, kHeads, kDim, kHeads, kDim};

  // Every 32nd slice begins a sequence.
  static SlicePlace PlaceOf(size_t i) {
    return {static_cast<int64_t>(i % 30), static_cast<int64_t>(i % 32) * kTokens};
  }
  bool Encode(size_t slices) {
    bool good = true;
    for (size_t i = 0; i < slices; ++i) {
      const auto* x = reinterpret_cast<const uint16_t*>(from_.get() + i * kSliceBytes);
      const Plane k{x, kHeads, kDim, kTokens * kDim, kDim};
      Plane v = k;
      v.data += kPlaneNumbers;
      const EncodeResult done = codec_->Encode(k, v, kTokens, PlaceOf(i),
                                               {encoded_.get() + i * stride_, stride_}, scratch_);
      lengths_[i] = done.bytes;
      good &= done.status == CodecStatus::kOk;
    }
    return good;
  }
  bool Decode(size_t slices) {
    bool good = true;
    for (size_t i = 0; i < slices; ++i) {
      auto* y = reinterpret_cast<uint16_t*>(to_.get() + i * kSliceBytes);
      const MutablePlane k{y, kHeads, kDim, kTokens * kDim, kDim};
      MutablePlane v = k;
      v.data += kPlaneNumbers;
      good &= codec_->Decode({encoded_.get() + i * stride_, lengths_[i]}, k, v, kTokens, PlaceOf(i),
                             scratch_, true) == CodecStatus::kOk;
    }
    return good;
  }

  Buffer from_, to_, encoded_;
  std::unique_ptr<Codec> codec_;
  std::vector<std::byte> scratch_;
  size_t stride_ = 0;
  std::vector<size_t> lengths_;
  std::vector<double> encode_, decode_, encode_gbps_, decode_gbps_, memref_;
  double bits_ = 0, error_ = 0;
};

std::string List(const std::vector<double>& v) {
  std::string out;
  for (const double x : v) {
    char text[32];
    std::snprintf(text, sizeof(text), "%s%.4f", out.empty() ? "[" : ", ", x);
    out += text;
  }
  return out + "]";
}

int Main(int argc, char** argv) {
  bool json = false;
  std::string only;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else {
      std::fprintf(stderr, "unknown argument '%s'; usage: codec_bench [--json] [--only NAME]\n",
                   argv[i]);
      return 2;
    }
  }
  Bench bench;
  std::string out;
  for (const Case& c : kCases) {
    if (!only.empty() && only != c.label) continue;
    if (!bench.Run(c)) {
      std::fprintf(stderr, "%s: wrong result\n", c.label);
      return 1;
    }
    if (!json) {
      std::printf(
          "%-8s %6.3f bits  error %.4f  encode %5.2f GB/s, %5.3f x memref  decode %5.2f "
          "GB/s, %5.3f x memref\n",
          c.label, bench.bits(), bench.error(), Median(bench.encode_gbps()), Median(bench.encode()),
          Median(bench.decode_gbps()), Median(bench.decode()));
      std::fflush(stdout);
    }
    out += out.empty() ? "" : ", ";
    out += "\"" + std::string(c.label) + "\": {\"bits\": " + std::to_string(bench.bits()) +
           ", \"encode_x_memref\": " + List(bench.encode()) +
           ", \"decode_x_memref\": " + List(bench.decode()) +
           ", \"encode_gbps\": " + List(bench.encode_gbps()) +
           ", \"decode_gbps\": " + List(bench.decode_gbps()) + "}";
  }
  if (json) std::printf("{\"memref_gbps\": %.3f, %s}\n", Median(bench.memref()), out.c_str());
  return 0;
}

}  // namespace
}  // namespace cairn::codecs

int main(int argc, char** argv) { return cairn::codecs::Main(argc, argv); }
