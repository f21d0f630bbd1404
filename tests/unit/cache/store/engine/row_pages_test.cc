// Which pages of a slice are read for some of its rows, and how they are verified.

#include "services/cache/store/engine/row_pages.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cairn/common/hash.h"

namespace cairn::cache {
namespace {

constexpr uint64_t kPage = SlicePages::kBytes;
// As the second slice of a part lies: not on a page.
constexpr format::SliceEntry kSlice = {.offset = 832 + 48 * 1024, .length = 48 * 1024, .xxh3 = 0};

std::vector<std::pair<uint64_t, uint64_t>> RunsOf(
    const std::vector<std::pair<uint64_t, uint64_t>>& wanted) {
  PagesToRead pages(kSlice);
  for (const auto& [offset, bytes] : wanted) pages.Want(offset, bytes);
  std::vector<std::pair<uint64_t, uint64_t>> runs;
  for (const SlicePages& run : pages.Runs()) runs.emplace_back(run.begin, run.end);
  return runs;
}

TEST(PagesToReadTest, NothingIsWanted) { EXPECT_TRUE(RunsOf({}).empty()); }

TEST(PagesToReadTest, RowsFarFromEachOtherAreReadsOfAPage) {
  const uint64_t first = SlicePages::Of(kSlice).begin;
  using Runs = std::vector<std::pair<uint64_t, uint64_t>>;
  EXPECT_EQ(RunsOf({{0, 128}}), (Runs{{first, first + 1}}));
  EXPECT_EQ(RunsOf({{0, 128}, {24 * 1024, 128}}),
            (Runs{{first, first + 1}, {first + 6, first + 7}}));
  // These bytes lie on both sides of a page's end.
  EXPECT_EQ(RunsOf({{kPage - 832 - 64, 128}}), (Runs{{first, first + 2}}));
}

TEST(PagesToReadTest, SmallGapsAreReadAlongAndLargeOnesAreNot) {
  const uint64_t first = SlicePages::Of(kSlice).begin;
  using Runs = std::vector<std::pair<uint64_t, uint64_t>>;
  EXPECT_EQ(RunsOf({{0, 128}, {3 * kPage, 128}}), (Runs{{first, first + 4}}));
  EXPECT_EQ(RunsOf({{0, 128}, {6 * kPage, 128}}),
            (Runs{{first, first + 1}, {first + 6, first + 7}}));
}

TEST(PagesToReadTest, MuchOfASliceIsReadWhole) {
  const SlicePages all = SlicePages::Of(kSlice);
  std::vector<std::pair<uint64_t, uint64_t>> wanted;
  for (uint64_t unit = 0; unit < 5; ++unit) wanted.emplace_back(2 * unit * kPage, 128);
  using Runs = std::vector<std::pair<uint64_t, uint64_t>>;
  EXPECT_EQ(RunsOf(wanted), (Runs{{all.begin, all.end}}));
}

// Whatever is wanted: it is within the runs, these are in order, and no more than three times what
// was asked for in whole pages of the slice.
TEST(PagesToReadTest, ReadsAtMostThreeTimesOfWhatIsWanted) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    PagesToRead pages(kSlice);
    std::vector<bool> bytes(kSlice.length);
    std::vector<bool> units(kSlice.length / kPage);
    for (uint64_t i = 1 + random() % 12; i > 0; --i) {
      const uint64_t row = random() % (kSlice.length / 128);
      pages.Want(row * 128, 128);
      units[row * 128 / kPage] = true;
      bytes[row * 128] = bytes[row * 128 + 127] = true;
    }
    std::vector<bool> here(kSlice.length);
    uint64_t read = 0;
    uint64_t last = 0;
    for (const SlicePages& run : pages.Runs()) {
      ASSERT_GT(run.count(), 0u);
      ASSERT_TRUE(last == 0 || run.begin > last);
      last = run.end;
      read += run.count();
      for (uint64_t page = run.begin; page < run.end; ++page) {
        const auto [begin, end] = InPage(kSlice, page);
        for (uint64_t at = begin; at < end; ++at) here[at - kSlice.offset] = true;
      }
    }
    ASSERT_LE(read, 3 * static_cast<uint64_t>(std::count(units.begin(), units.end(), true)));
    for (uint64_t at = 0; at < kSlice.length; ++at) ASSERT_LE(bytes[at], here[at]) << at;
  }
}

class SlicePiecesTest : public ::testing::Test {
 protected:
  SlicePiecesTest() : part_(kSlice.offset + kSlice.length + 100) {
    for (size_t i = 0; i < part_.size(); ++i) part_[i] = static_cast<std::byte>(i * 31 % 251);
  }
  std::span<const std::byte> InPart(const SlicePages& run) const {
    const uint64_t begin = run.begin * kPage;
    return std::span(part_).subspan(begin, std::min(part_.size(), run.end * kPage) - begin);
  }
  std::vector<uint64_t> HashesOf(const SlicePages& run) const {
    std::vector<uint64_t> hashes;
    for (uint64_t page = run.begin; page < run.end; ++page) {
      const auto [begin, end] = InPage(kSlice, page);
      hashes.push_back(Xxh3(std::span(part_).subspan(begin, end - begin)));
    }
    return hashes;
  }

  std::vector<std::byte> part_;
};

TEST_F(SlicePiecesTest, GivesTheBytesThatAreHere) {
  const SlicePages all = SlicePages::Of(kSlice);
  const SlicePages first = {all.begin, all.begin + 2};
  const SlicePages last = {all.end - 1, all.end};
  SlicePieces pieces(kSlice);
  pieces.Add(first, InPart(first), HashesOf(first));
  pieces.Add(last, InPart(last), HashesOf(last));
  EXPECT_TRUE(pieces.Verify());
  const auto slice = std::span(part_).subspan(kSlice.offset, kSlice.length);
  for (const uint64_t at : {uint64_t{0}, uint64_t{5000}, kSlice.length - 128}) {
    const std::span<const std::byte> found = pieces.At(at, 128);
    ASSERT_EQ(found.size(), 128u) << at;
    EXPECT_TRUE(std::ranges::equal(found, slice.subspan(at, 128))) << at;
  }
  EXPECT_TRUE(pieces.At(3 * kPage, 128).empty());
  EXPECT_TRUE(pieces.At(2 * kPage - 832 - 64, 128).empty()) << "half of it is here";
}

TEST_F(SlicePiecesTest, SeesADamagedByteOfTheSliceAndNoOther) {
  const SlicePages all = SlicePages::Of(kSlice);
  const SlicePages first = {all.begin, all.begin + 2};
  const std::vector<uint64_t> hashes = HashesOf(first);
  for (const uint64_t at : {first.begin * kPage, kSlice.offset, first.end * kPage - 1}) {
    part_[at] ^= std::byte{1};
    SlicePieces pieces(kSlice);
    pieces.Add(first, InPart(first), hashes);
    // The first byte of the page is the slice's before.
    EXPECT_EQ(pieces.Verify(), at < kSlice.offset) << at;
    part_[at] ^= std::byte{1};
  }
  SlicePieces fewer(kSlice);
  fewer.Add(first, InPart(first), std::span(hashes).first(1));
  EXPECT_FALSE(fewer.Verify()) << "a page without a hash";
}

}  // namespace
}  // namespace cairn::cache
