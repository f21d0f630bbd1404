#include "benchmarks/model/generated_requests.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace cairn::simulated {
namespace {

constexpr double kHour = 3600;

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  void Agents() {
    std::vector<std::vector<uint64_t>> systems;
    for (int i = 0; i < 8; ++i) systems.push_back(NewBlocks(8));
    for (double at = 0; at < kHour; at += Exponential(9)) {
      std::vector<uint64_t> blocks = systems[Whole(0, 7)];
      double time = at;
      for (uint64_t step = Whole(1, 20); step > 0; --step) {
        const int64_t tokens = Extend(&blocks, Whole(1000, 3000));
        Ask(time, blocks, tokens, static_cast<int64_t>(Whole(50, 300)));
        time += Exponential(4);
      }
    }
  }

  void Documents() {
    std::vector<std::vector<uint64_t>> documents;
    std::vector<double> shares;
    for (int i = 0; i < 400; ++i) {
      documents.push_back(NewBlocks(Whole(8, 80)));
      shares.push_back(1.0 / (i + 1));
    }
    std::discrete_distribution<size_t> zipf(shares.begin(), shares.end());
    for (double at = 0; at < kHour; at += Exponential(0.5)) {
      std::vector<uint64_t> blocks = documents[zipf(random_)];
      const int64_t tokens = Extend(&blocks, Whole(200, 800));
      Ask(at, blocks, tokens, static_cast<int64_t>(Whole(50, 600)));
    }
  }

  void Bursts() {
    double at = 0;
    while (at < kHour) {
      const bool burst = std::fmod(at, 90) < 30;
      at += Exponential(burst ? 0.25 : 2);
      std::vector<uint64_t> blocks;
      double time = at;
      for (uint64_t turn = Whole(1, 6); turn > 0; --turn) {
        const int64_t tokens = Extend(&blocks, Whole(300, 9000));
        Ask(time, blocks, tokens, static_cast<int64_t>(Whole(50, 700)));
        time += Exponential(60);
      }
    }
  }

  std::vector<Request> Take() {
    std::ranges::stable_sort(requests_, {}, &Request::arrival);
    return std::move(requests_);
  }

 private:
  double Exponential(double mean) {
    return std::exponential_distribution<double>(1 / mean)(random_);
  }
  uint64_t Whole(uint64_t least, uint64_t most) {
    return std::uniform_int_distribution<uint64_t>(least, most)(random_);
  }
  std::vector<uint64_t> NewBlocks(uint64_t count) {
    std::vector<uint64_t> blocks;
    for (uint64_t i = 0; i < count; ++i) blocks.push_back(next_block_++);
    return blocks;
  }
  // Adds `tokens`, rounded up to blocks. Returns the tokens of the whole.
  int64_t Extend(std::vector<uint64_t>* blocks, uint64_t tokens) {
    const uint64_t count = (tokens + kTraceBlock - 1) / kTraceBlock;
    const std::vector<uint64_t> more = NewBlocks(count);
    blocks->insert(blocks->end(), more.begin(), more.end());
    return std::ssize(*blocks) * kTraceBlock;
  }
  void Ask(double at, const std::vector<uint64_t>& blocks, int64_t tokens, int64_t answer) {
    requests_.push_back(
        {.arrival = at, .input_tokens = tokens, .output_tokens = answer, .blocks = blocks});
  }

  std::mt19937_64 random_;
  uint64_t next_block_ = 1;
  std::vector<Request> requests_;
};

}  // namespace

std::vector<Request> GenerateRequests(std::string_view kind, uint64_t seed) {
  Generator generator(seed);
  if (kind == "agents") generator.Agents();
  if (kind == "documents") generator.Documents();
  if (kind == "bursts") generator.Bursts();
  return generator.Take();
}

}  // namespace cairn::simulated
