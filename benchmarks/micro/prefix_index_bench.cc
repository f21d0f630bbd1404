// Lookups in a router's index of who holds what: prompts of 2,048 blocks that all of 8 members
// hold, each time another one, in an index of a million blocks.
//
//   prefix_index_bench
//
// The yardstick is to hash the keys of a prompt, which no index can do without.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "common/hash/keyed_hash.h"
#include "services/router/index/prefix_index.h"

namespace cairn::router {
namespace {

constexpr size_t kPrompts = 512;
constexpr size_t kBlocks = 2048;
constexpr int kMembers = 8;

template <typename Function>
double MedianMicros(Function run) {
  std::vector<double> micros;
  for (size_t i = 0; i < kPrompts; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    // Far from the one before.
    run((i * 211) % kPrompts);
    micros.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::ranges::nth_element(micros, micros.begin() + kPrompts / 2);
  return micros[kPrompts / 2];
}

int Main() {
  std::vector<std::vector<BlockKey>> prompts(kPrompts);
  for (size_t i = 0; i < kPrompts; ++i) {
    for (size_t block = 0; block < kBlocks; ++block) {
      prompts[i].push_back(Sha256::Of(std::to_string(i * kBlocks + block)));
    }
  }
  const Digest space = Sha256::Of("namespace");
  PrefixIndex index({});
  const auto begin = std::chrono::steady_clock::now();
  for (int member = 0; member < kMembers; ++member) {
    client::MemberEvent event;
    event.node_id = "node-" + std::to_string(member);
    event.event.fingerprint = space;
    for (const auto& prompt : prompts) {
      event.event.parent.reset();
      for (const BlockKey& key : prompt) {
        event.event.key = key;
        index.Apply(event);
        event.event.parent = key;
      }
    }
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  uint64_t wrong = 0;
  const double lookup = MedianMicros([&](size_t i) {
    const HeldPrefix held = index.Lookup(space, prompts[i]);
    if (held.any_blocks != kBlocks || held.holders.size() != kMembers) ++wrong;
  });
  uint64_t sum = 0;
  const double hashing = MedianMicros([&](size_t i) {
    for (const BlockKey& key : prompts[i]) sum += KeyedHash::OfProcess()(key);
  });
  const PrefixIndex::Numbers numbers = index.numbers();
  std::printf(
      "lookup %.0f us, hashes alone %.0f us (%.1f times), event %.0f ns, %.1f bytes a block\n",
      lookup, hashing, lookup / hashing, seconds * 1e9 / (kMembers * kPrompts * kBlocks),
      static_cast<double>(numbers.bytes) / static_cast<double>(numbers.entries));
  if (wrong > 0 || sum == 0) std::fprintf(stderr, "%lu lookups were wrong\n", wrong);
  return wrong > 0 ? 1 : 0;
}

}  // namespace
}  // namespace cairn::router

int main() { return cairn::router::Main(); }
