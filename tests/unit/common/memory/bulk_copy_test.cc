#include "common/memory/bulk_copy.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <random>
#include <vector>

#include "common/memory/kernels.h"

namespace cairn {
namespace {

TEST(BulkCopyTest, CopiesExactlyAtEveryAlignmentAndSize) {
  SCOPED_TRACE(std::string(BulkCopyKind()));
  const size_t sizes[] = {0,     1,     63,    64,     4096,   65535,  65536,
                          65537, 65599, 65791, 131071, 131072, 1400000};
  std::mt19937_64 rng(1);
  std::vector<unsigned char> source(1400000 + 256);
  for (auto& b : source) b = static_cast<unsigned char>(rng());
  std::vector<unsigned char> destination(source.size() + 256);
  for (size_t size : sizes) {
    for (size_t to : {0, 1, 31, 32, 63, 64}) {
      for (size_t from : {0, 1, 33}) {
        std::fill(destination.begin(), destination.end(), 0xAB);
        BulkCopy(destination.data() + 64 + to, source.data() + from, size);
        ASSERT_EQ(std::memcmp(destination.data() + 64 + to, source.data() + from, size), 0)
            << size << " " << to << " " << from;
        for (size_t guard = 0; guard < 64; ++guard) {
          ASSERT_EQ(destination[to + guard], 0xAB) << size << " " << to << " " << from;
          ASSERT_EQ(destination[64 + to + size + guard], 0xAB) << size << " " << to << " " << from;
        }
      }
    }
  }
}

// Every instruction set that this machine has, and the choice among them.
struct Hasher {
  const char* name;
  uint64_t (*hash)(std::byte* to, const std::byte* from, size_t bytes, memory::Store store,
                   const std::byte* next);
};

std::vector<Hasher> Hashers() {
  std::vector<Hasher> all;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) all.push_back({"avx512", memory::Avx512Kernels()->hash});
  if (__builtin_cpu_supports("avx2")) all.push_back({"avx2", memory::Avx2Kernels()->hash});
#endif
  all.push_back({"chosen", [](std::byte* to, const std::byte* from, size_t bytes,
                              memory::Store store, const std::byte* next) {
                   if (store == memory::Store::kNone) return BulkXxh3({from, bytes}, next);
                   return CopyXxh3(to, from, bytes, store != memory::Store::kCached, next);
                 }});
  return all;
}

TEST(BulkCopyTest, EveryInstructionSetHashesAsTheLibraryAndCopiesExactly) {
  std::mt19937_64 rng(2);
  std::vector<std::byte> source(300'000);
  for (auto& b : source) b = static_cast<std::byte>(rng());
  std::vector<std::byte> room(source.size() + 256);
  const size_t sizes[] = {2048, 2049, 2111,  2112,  2113,   3071,   3072,
                          3073, 4096, 65536, 65537, 99'999, 262'144};
  for (const Hasher& hasher : Hashers()) {
    for (size_t size : sizes) {
      for (size_t from : {0, 1, 33}) {
        const std::byte* in = source.data() + from;
        const uint64_t expected = XXH3_64bits(in, size);
        EXPECT_EQ(hasher.hash(nullptr, in, size, memory::Store::kNone, in), expected)
            << hasher.name << " " << size;
        const std::pair<memory::Store, size_t> stores[] = {{memory::Store::kCached, 0},
                                                           {memory::Store::kCached, 5},
                                                           {memory::Store::kStreaming, 0},
                                                           {memory::Store::kStreamingShifted, 1},
                                                           {memory::Store::kStreamingShifted, 4},
                                                           {memory::Store::kStreamingShifted, 16},
                                                           {memory::Store::kStreamingShifted, 60},
                                                           {memory::Store::kStreamingShifted, 63}};
        for (const auto& [store, shift] : stores) {
          std::fill(room.begin(), room.end(), std::byte{0xAB});
          std::byte* to =
              room.data() + 64 + (-reinterpret_cast<uintptr_t>(room.data()) & 63) + shift;
          EXPECT_EQ(hasher.hash(to, in, size, store, in), expected) << hasher.name << " " << size;
          StreamingFence();
          ASSERT_EQ(std::memcmp(to, in, size), 0) << hasher.name << " " << size;
          for (size_t guard = 0; guard < 64; ++guard) {
            ASSERT_EQ(to[-1 - static_cast<std::ptrdiff_t>(guard)], std::byte{0xAB});
            ASSERT_EQ(to[size + guard], std::byte{0xAB}) << hasher.name << " " << size;
          }
        }
      }
    }
  }
}

TEST(BulkCopyTest, CopiesManyRunsAtOnce) {
  std::mt19937_64 rng(3);
  std::vector<std::byte> source(600'000);
  for (auto& b : source) b = static_cast<std::byte>(rng());
  std::vector<std::byte> room(source.size());
  std::vector<CopyRun> runs;
  size_t at = 0;
  while (at < source.size()) {
    const size_t bytes = std::min<size_t>(source.size() - at, rng() % 20'000);
    runs.push_back({room.data() + at, source.data() + at, bytes});
    at += bytes;
  }
  StreamingCopy(runs);
  StreamingFence();
  EXPECT_EQ(room, source);
}

TEST(BulkCopyTest, HashesAndCopiesShortAndUnalignedBytes) {
  std::vector<std::byte> source(5000);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 31);
  std::vector<std::byte> room(5200);
  for (size_t size = 0; size < 4500; size = size < 300 ? size + 1 : size + 97) {
    for (bool streaming : {false, true}) {
      std::fill(room.begin(), room.end(), std::byte{0});
      EXPECT_EQ(CopyXxh3(room.data() + 3, source.data(), size, streaming),
                XXH3_64bits(source.data(), size));
      StreamingFence();
      EXPECT_EQ(std::memcmp(room.data() + 3, source.data(), size), 0) << size;
      EXPECT_EQ(BulkXxh3(std::span(source).first(size)), XXH3_64bits(source.data(), size));
      StreamingCopy(room.data() + 1, source.data(), size);
      StreamingFence();
      EXPECT_EQ(std::memcmp(room.data() + 1, source.data(), size), 0) << size;
    }
  }
}

}  // namespace
}  // namespace cairn
