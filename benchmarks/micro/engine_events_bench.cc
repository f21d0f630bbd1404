// An engine's KV events into a router's index: batches of one prompt's blocks each, 128 blocks of
// 16 tokens, as vLLM encodes them.
//
//   engine_events_bench
//
// The yardstick is to derive the keys of the same blocks, which no follower can do without.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <msgpack.hpp>
#include <string>
#include <vector>

#include "services/router/events/batch_decoder.h"
#include "services/router/events/engine_view.h"
#include "services/router/index/prefix_index.h"

namespace cairn::router {
namespace {

constexpr size_t kBatches = 1000;
constexpr size_t kBlocks = 128;
constexpr uint32_t kTokens = 16;

std::string Batch(size_t number, const std::vector<int32_t>& tokens) {
  msgpack::sbuffer buffer;
  msgpack::packer packer(buffer);
  packer.pack_array(2);
  packer.pack(1.0);
  packer.pack_array(1);
  packer.pack_map(6);
  packer.pack("type");
  packer.pack("BlockStored");
  packer.pack("block_hashes");
  packer.pack_array(kBlocks);
  for (size_t i = 0; i < kBlocks; ++i) {
    // Hashes have 64 bits, as those of engines.
    packer.pack((number * kBlocks + i + 1) * 0x9e3779b97f4a7c15ull);
  }
  packer.pack("parent_block_hash");
  packer.pack_nil();
  packer.pack("token_ids");
  packer.pack(tokens);
  packer.pack("block_size");
  packer.pack(kTokens);
  packer.pack("medium");
  packer.pack("GPU");
  return {buffer.data(), buffer.size()};
}

// Median of what each call takes, in microseconds.
template <typename Function>
double MedianMicros(Function run) {
  std::vector<double> micros;
  for (size_t i = 0; i < kBatches; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run(i);
    micros.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::ranges::nth_element(micros, micros.begin() + kBatches / 2);
  return micros[kBatches / 2];
}

int Main() {
  std::vector<std::vector<int32_t>> prompts(kBatches);
  std::vector<std::string> batches;
  for (size_t i = 0; i < kBatches; ++i) {
    for (size_t token = 0; token < kBlocks * kTokens; ++token) {
      prompts[i].push_back(static_cast<int32_t>((i * 7919 + token * 104729) % 128'000));
    }
    batches.push_back(Batch(i, prompts[i]));
  }
  const EngineNamespace space = MakeEngineNamespace(EngineKeys::kTokens, kTokens);
  PrefixIndex index({});
  EngineView view({.member = "engine", .space = space},
                  [&](const client::MemberEvent& event, uint32_t tail_blocks) {
                    index.Apply(event, tail_blocks);
                  });
  const double keys = MedianMicros([&](size_t i) {
    if (BlockKeyChain(space.fingerprint).Keys(prompts[i], kTokens).size() != kBlocks) std::abort();
  });
  const double decode = MedianMicros([&](size_t i) {
    if (!DecodeBatch(batches[i]).ok()) std::abort();
  });
  const double all = MedianMicros([&](size_t i) { view.Apply(*DecodeBatch(batches[i])); });
  if (index.numbers().entries != kBatches * kBlocks) std::abort();
  std::printf("batch of %zu blocks of %u tokens, %zu bytes\n", kBlocks, kTokens, batches[0].size());
  std::printf("keys alone           %8.1f us\n", keys);
  std::printf("decode               %8.1f us\n", decode);
  std::printf("decode and apply     %8.1f us  %5.2f times keys alone, %.0f blocks/s\n", all,
              all / keys, 1e6 * kBlocks / all);
  return 0;
}

}  // namespace
}  // namespace cairn::router

int main() { return cairn::router::Main(); }
