// The cost of verifying rows, by what a hash covers: whole slices, groups of rows, or rows. The
// slice is that of SmolLM2-135M: K and V of 3 heads, 64 tokens and 64 dimensions in half precision.
//
//   rows_bench --benchmark_min_time=0.2
//
// Slices lie in 256 MB that are walked in a random order, as a decode step walks the blocks of a
// long context: most of them are in no cache.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "cairn/common/hash.h"
#include "cairn/common/rows.h"
#include "common/memory/bulk_copy.h"

namespace cairn {
namespace {

constexpr uint32_t kHeads = 3, kTokens = 64;
constexpr size_t kRow = 128;
constexpr size_t kSlice = 2 * kHeads * kTokens * kRow;
constexpr size_t kSlices = (256u << 20) / kSlice;

struct Slices {
  Slices() : bytes(kSlices * kSlice), order(kSlices) {
    std::mt19937_64 random(1);
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      const uint64_t value = random();
      std::memcpy(bytes.data() + i, &value, 8);
    }
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
  }
  std::span<const std::byte> Next() {
    const size_t slice = order[next++ % kSlices];
    return std::span(bytes).subspan(slice * kSlice, kSlice);
  }
  std::vector<std::byte> bytes;
  std::vector<size_t> order;
  size_t next = 0;
};

Slices& All() {
  static Slices slices;
  return slices;
}

SliceRows Layout() {
  SliceRows rows(kTokens, 0, kHeads);
  for (uint64_t plane = 0; plane < 2; ++plane) {
    rows.Add({.offset = plane * kSlice / 2, .head_bytes = kTokens * kRow, .row_bytes = kRow});
  }
  return rows;
}

// `rows` rows of each head, at places that differ from slice to slice.
uint64_t MaskOf(std::mt19937_64& random, int64_t rows) {
  uint64_t mask = 0;
  while (std::popcount(mask) < rows) mask |= uint64_t{1} << (random() % kTokens);
  return mask;
}

// One hash of the whole slice.
void HashSlice(benchmark::State& state) {
  Slices& all = All();
  for (auto _ : state) benchmark::DoNotOptimize(BulkXxh3(all.Next()));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kSlice));
}

// A hash of each run of `rows` rows of the slice.
void HashRunsOfSlice(benchmark::State& state) {
  Slices& all = All();
  const size_t run = static_cast<size_t>(state.range(0)) * kRow;
  for (auto _ : state) {
    const auto slice = all.Next();
    for (size_t at = 0; at < kSlice; at += run)
      benchmark::DoNotOptimize(Xxh3(slice.subspan(at, run)));
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kSlice));
  state.counters["hash_bytes_share"] = 8.0 / static_cast<double>(run);
}

// Copies the slice, and hashes it in the same pass.
void CopyAndHashSlice(benchmark::State& state) {
  Slices& all = All();
  std::vector<std::byte> to(kSlice);
  for (auto _ : state) {
    const auto slice = all.Next();
    benchmark::DoNotOptimize(CopyXxh3(to.data(), slice.data(), kSlice, false));
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kSlice));
}

// Copies the wanted rows of each head out of a verified slice.
void GatherRows(benchmark::State& state) {
  Slices& all = All();
  const SliceRows rows = Layout();
  std::vector<std::byte> to(kSlice);
  std::mt19937_64 random(2);
  for (auto _ : state) {
    const auto slice = all.Next();
    for (uint32_t head = 0; head < kHeads; ++head) {
      const uint64_t mask = MaskOf(random, state.range(0));
      rows.Gather(slice, head, {&mask, 1}, to.data());
    }
    benchmark::DoNotOptimize(to.data());
  }
}

// The same, and the hash that goes with each group over gRPC.
void GatherAndHashRows(benchmark::State& state) {
  Slices& all = All();
  const SliceRows rows = Layout();
  std::vector<std::byte> to(kSlice);
  std::mt19937_64 random(2);
  for (auto _ : state) {
    const auto slice = all.Next();
    for (uint32_t head = 0; head < kHeads; ++head) {
      const uint64_t mask = MaskOf(random, state.range(0));
      rows.Gather(slice, head, {&mask, 1}, to.data());
      const size_t bytes = 2 * static_cast<size_t>(state.range(0)) * kRow;
      benchmark::DoNotOptimize(HashRows({.head = head}, {&mask, 1}, std::span(to).first(bytes)));
    }
  }
}

// Copies the groups of 16 rows that have a wanted one, and hashes the copies, as from memory that
// others can write to.
void GatherVerifiedGroups(benchmark::State& state) {
  Slices& all = All();
  std::vector<std::byte> group(16 * kRow);
  std::mt19937_64 random(2);
  for (auto _ : state) {
    const auto slice = all.Next();
    for (uint32_t head = 0; head < kHeads; ++head) {
      const uint64_t mask = MaskOf(random, state.range(0));
      for (size_t plane = 0; plane < 2; ++plane) {
        for (size_t first = 0; first < kTokens; first += 16) {
          if ((mask >> first & 0xffff) == 0) continue;
          const size_t at = ((plane * kHeads + head) * kTokens + first) * kRow;
          std::memcpy(group.data(), slice.data() + at, group.size());
          benchmark::DoNotOptimize(Xxh3(group));
        }
      }
    }
  }
}

BENCHMARK(HashSlice);
BENCHMARK(HashRunsOfSlice)->Arg(16)->Arg(4)->Arg(1);
BENCHMARK(CopyAndHashSlice);
BENCHMARK(GatherRows)->Arg(1)->Arg(2)->Arg(8);
BENCHMARK(GatherAndHashRows)->Arg(1)->Arg(2)->Arg(8);
BENCHMARK(GatherVerifiedGroups)->Arg(1)->Arg(2)->Arg(8);

}  // namespace
}  // namespace cairn

BENCHMARK_MAIN();
