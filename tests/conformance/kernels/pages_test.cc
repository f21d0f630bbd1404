// Hashes of runs and moves of pages, on every backend that has them.

#include <algorithm>
#include <numeric>

#include "tests/conformance/kernels/case.h"

namespace cairn::kernels {
namespace {

using testing::BackendCaseName;
using testing::Guarded;
using testing::HalfOf;

using PagesTest = testing::FamilyTest<&Backend::slices>;

struct Geometry {
  int64_t layers, pages, blocks;
  uint32_t piece_bytes;
};
const Geometry kGeometries[] = {{1, 1, 1, 16}, {3, 7, 4, 4096 + 16}, {6, 40, 5, 8192}};

// Blocks in the cache of an engine: [layer][page][bytes].
struct Cache {
  Cache(testing::Device& device, const Geometry& g, std::vector<uint16_t> numbers)
      : memory(device, numbers), content(std::move(numbers)) {
    for (int64_t layer = 0; layer < g.layers; ++layer) {
      pieces.push_back(reinterpret_cast<std::byte*>(memory.get()) +
                       layer * g.pages * g.piece_bytes);
    }
  }
  Guarded<uint16_t> memory;
  std::vector<uint16_t> content;
  std::vector<std::byte*> pieces;
};

size_t Numbers(const Geometry& g) {
  return static_cast<size_t>(g.layers * g.pages * g.piece_bytes / 2);
}
// Where number i of piece `layer` of a page lies.
size_t At(const Geometry& g, int64_t layer, int64_t page, int64_t i) {
  return static_cast<size_t>((layer * g.pages + page) * g.piece_bytes / 2 + i);
}

// Each block another page, without order.
std::vector<uint32_t> Pages(const Geometry& g, std::mt19937* rng) {
  std::vector<uint32_t> all(static_cast<size_t>(g.pages));
  std::iota(all.begin(), all.end(), 0u);
  std::shuffle(all.begin(), all.end(), *rng);
  all.resize(static_cast<size_t>(g.blocks));
  return all;
}

TEST_P(PagesTest, GatherAndScatterMoveEachByteToItsPlaceAndTouchNoOther) {
  for (const Geometry& g : kGeometries) {
    std::vector<uint16_t> numbers(Numbers(g));
    for (uint16_t& x : numbers) x = static_cast<uint16_t>(rng()());
    Cache cache(here(), g, numbers);
    const std::vector<uint32_t> from = Pages(g, &rng()), to = Pages(g, &rng());
    const int64_t stride = g.layers * g.piece_bytes + 32;  // A gap behind each block.
    Guarded<std::byte> blocks(here(), g.blocks * stride, std::byte{0x5a});
    MovePagesArgs args{
        {cache.pieces.data(), g.layers, from.data(), g.blocks, g.piece_bytes, g.piece_bytes},
        blocks.get(),
        static_cast<uint64_t>(stride)};
    here().Run(&SliceKernels::gather_pages, args);
    std::vector<std::byte> want(static_cast<size_t>(g.blocks * stride), std::byte{0x5a});
    for (int64_t b = 0; b < g.blocks; ++b) {
      for (int64_t layer = 0; layer < g.layers; ++layer) {
        std::memcpy(want.data() + b * stride + layer * g.piece_bytes,
                    &numbers[At(g, layer, from[static_cast<size_t>(b)], 0)], g.piece_bytes);
      }
    }
    EXPECT_EQ(blocks.Read(), want);

    args.pages.index = to.data();
    here().Run(&SliceKernels::scatter_pages, args);
    std::vector<uint16_t> moved = numbers;
    for (int64_t b = 0; b < g.blocks; ++b) {
      for (int64_t layer = 0; layer < g.layers; ++layer) {
        const auto n = static_cast<size_t>(b);
        std::memcpy(&moved[At(g, layer, to[n], 0)], &numbers[At(g, layer, from[n], 0)],
                    g.piece_bytes);
      }
    }
    EXPECT_EQ(cache.memory.Read(), moved);
  }
}

TEST_P(PagesTest, Bfloat16PagesBecomeHalvesAndBack) {
  const Geometry g{2, 3, 2, 2048};
  std::vector<uint16_t> numbers(Numbers(g));
  // All numbers from 1 to 2, of both signs, are halves too.
  for (uint16_t& x : numbers) x = static_cast<uint16_t>(0x3f80 | (rng()() & 0x807f));
  Cache cache(here(), g, numbers);
  const std::vector<uint32_t> index = {2, 0};
  const uint64_t stride = static_cast<uint64_t>(g.layers) * g.piece_bytes;
  Guarded<uint16_t> blocks(here(), static_cast<int64_t>(stride) * g.blocks / 2);
  Guarded<uint32_t> faults(here(), 1);
  MovePagesArgs args{
      {cache.pieces.data(), g.layers, index.data(), g.blocks, g.piece_bytes, g.piece_bytes},
      reinterpret_cast<std::byte*>(blocks.get()),
      stride,
      true,
      faults.get()};
  here().Run(&SliceKernels::gather_pages, args);
  const std::vector<uint16_t> halves = blocks.Read();
  for (int64_t b = 0; b < g.blocks; ++b) {
    for (int64_t i = 0; i < g.layers * g.piece_bytes / 2; ++i) {
      const int64_t layer = i / (g.piece_bytes / 2), number = i % (g.piece_bytes / 2);
      const uint32_t bits = uint32_t{numbers[At(g, layer, index[static_cast<size_t>(b)], number)]}
                            << 16;
      float x;
      std::memcpy(&x, &bits, 4);
      ASSERT_EQ(halves[static_cast<size_t>(b) * stride / 2 + static_cast<size_t>(i)], HalfOf(x));
    }
  }
  EXPECT_EQ(faults.Read()[0], 0u);
  here().Run(&SliceKernels::scatter_pages, args);
  EXPECT_EQ(cache.memory.Read(), numbers) << "there and back";

  numbers[At(g, 1, 2, 77)] = 0x4800;  // 2^17
  Cache large(here(), g, numbers);
  args.pages.pieces = large.pieces.data();
  here().Run(&SliceKernels::gather_pages, args);
  EXPECT_EQ(faults.Read()[0], kInexactFault);
}

TEST_P(PagesTest, ListsLongerThanALaunchAreSplit) {
  const Geometry g{600, 2, 4100, 16};
  std::vector<uint16_t> numbers(Numbers(g));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint16_t>(i * 7);
  // Few pages, many blocks, and few pieces or many.
  for (const bool many_pieces : {false, true}) {
    const int64_t pieces = many_pieces ? g.layers : 1, count = many_pieces ? 2 : g.blocks;
    Cache cache(here(), g, numbers);
    std::vector<uint32_t> index;
    for (int64_t b = 0; b < count; ++b) index.push_back(static_cast<uint32_t>(b % 2));
    Guarded<uint16_t> blocks(here(), count * pieces * 8);
    here().Run(&SliceKernels::gather_pages,
               {{cache.pieces.data(), pieces, index.data(), count, 16, 16},
                reinterpret_cast<std::byte*>(blocks.get()),
                static_cast<uint64_t>(pieces) * 16});
    const std::vector<uint16_t> got = blocks.Read();
    for (int64_t b = 0; b < count; ++b) {
      for (int64_t p = 0; p < pieces; ++p) {
        ASSERT_EQ(got[static_cast<size_t>((b * pieces + p) * 8)], numbers[At(g, p, b % 2, 0)])
            << "block " << b << ", piece " << p;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PagesTest, ::testing::ValuesIn(testing::BackendNames()),
                         BackendCaseName);

}  // namespace
}  // namespace cairn::kernels
