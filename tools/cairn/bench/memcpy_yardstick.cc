#include <chrono>
#include <cstring>

#include "tools/cairn/bench/yardstick.h"

namespace cairn::cli::bench {
namespace {

constexpr size_t kBlock = size_t{1} << 20;

class MemcpyYardstick final : public Yardstick {
 public:
  explicit MemcpyYardstick(const YardstickBuffers& buffers) : buffers_(buffers) {}

  std::string name() const override { return "memref"; }
  std::string description() const override {
    return "one thread of libc memcpy, 1 MiB blocks, 256 MiB to 256 MiB";
  }

  Result<double> Measure() override {
    const auto source = buffers_.source.bytes(), destination = buffers_.destination.bytes();
    constexpr int kPasses = 2;
    const auto start = std::chrono::steady_clock::now();
    for (int pass = 0; pass < kPasses; ++pass) {
      for (size_t at = 0; at < source.size(); at += kBlock) {
        std::memcpy(destination.data() + at, source.data() + at, kBlock);
      }
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (std::memcmp(destination.data(), source.data(), source.size()) != 0) {
      return Errorf(StatusCode::kInternal, "memref: the copy differs");
    }
    return kPasses * static_cast<double>(source.size()) / took.count() / 1e9;
  }

 private:
  const YardstickBuffers& buffers_;
};

}  // namespace

Result<YardstickBuffers> YardstickBuffers::Allocate() {
  YardstickBuffers buffers;
  CAIRN_ASSIGN_OR_RETURN(buffers.source, Buffer::Allocate(size_t{256} << 20));
  CAIRN_ASSIGN_OR_RETURN(buffers.destination, Buffer::Allocate(size_t{256} << 20));
  FillRandom(buffers.source.bytes(), 1);
  return buffers;
}

std::unique_ptr<Yardstick> NewMemcpyYardstick(const YardstickBuffers& buffers) {
  return std::make_unique<MemcpyYardstick>(buffers);
}

}  // namespace cairn::cli::bench
