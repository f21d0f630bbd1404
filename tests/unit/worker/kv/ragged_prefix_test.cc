#include "services/worker/kv/ragged_prefix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <span>

#include "common/status/matchers.h"

namespace cairn::worker {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

constexpr KvLayout kKv{.layers = 2, .kv_heads = 3, .head_dim = 8, .block_tokens = 64};

// Rows kept by [layer][head].
using Kept = std::vector<std::vector<int32_t>>;

size_t HeadOf(int layer, int head) { return static_cast<size_t>(layer * kKv.kv_heads + head); }

RaggedPrefix::RowsOf RowsOf(const Kept& kept) {
  return [&kept](int layer, int head) { return kept[HeadOf(layer, head)]; };
}

// Every head another number of rows, one of them none, one all.
Kept RandomRows(int64_t tokens, std::mt19937* rng) {
  Kept kept(static_cast<size_t>(kKv.layers * kKv.kv_heads));
  for (size_t h = 0; h < kept.size(); ++h) {
    const auto share = h == 1 ? 0u : h == 2 ? 100u : (*rng)() % 101;
    for (int32_t row = 0; row < tokens; ++row) {
      if ((*rng)() % 100 < share) kept[h].push_back(row);
    }
  }
  return kept;
}

// A number that names layer, plane, head, position and channel.
uint16_t Value(int layer, bool v, int head, int64_t position, int64_t d) {
  return static_cast<uint16_t>(position * 97 + layer * 31 + head * 7 + (v ? 3 : 0) + d * 1009);
}

class RaggedPrefixTest : public ::testing::Test {
 protected:
  void SetUp() override { pool_ = *KvPool::Create(kKv, 64 * kKv.page_bytes()); }

  // Writes positions [begin, end) into the sequence's pages.
  static void Fill(KvSequence& sequence, int64_t begin, int64_t end) {
    for (int64_t position = begin; position < end; ++position) {
      const int64_t token = position - sequence.base();
      for (int layer = 0; layer < kKv.layers; ++layer) {
        std::byte* slice = sequence.LayerSlice(token / kKv.block_tokens, layer).data();
        for (int head = 0; head < kKv.kv_heads; ++head) {
          for (const bool v : {false, true}) {
            auto* row = reinterpret_cast<uint16_t*>(
                slice + (v ? kKv.plane_bytes() : 0) + static_cast<size_t>(head) * kKv.head_bytes() +
                static_cast<size_t>(token % kKv.block_tokens) * kKv.row_bytes());
            for (int64_t d = 0; d < kKv.head_dim; ++d) row[d] = Value(layer, v, head, position, d);
          }
        }
      }
    }
    sequence.SetLength(end);
  }

  // The prefix has, of each head, the rows of these positions in this order.
  static void ExpectRows(const RaggedPrefix& prefix, const Kept& positions) {
    for (int layer = 0; layer < kKv.layers; ++layer) {
      for (int head = 0; head < kKv.kv_heads; ++head) {
        const std::vector<int32_t>& want = positions[HeadOf(layer, head)];
        ASSERT_EQ(prefix.rows(layer, head), std::ssize(want));
        std::vector<uint16_t> k(want.size() * kKv.head_dim), v(k.size());
        prefix.CopyRows(layer, head, 0, std::ssize(want), k.data(), v.data());
        for (size_t i = 0; i < want.size(); ++i) {
          for (int64_t d = 0; d < kKv.head_dim; ++d) {
            const size_t at = i * kKv.head_dim + static_cast<size_t>(d);
            ASSERT_EQ(k[at], Value(layer, false, head, want[i], d)) << layer << " " << head;
            ASSERT_EQ(v[at], Value(layer, true, head, want[i], d)) << layer << " " << head;
          }
        }
      }
    }
  }

  static void Add(Kept* to, const Kept& more, int64_t begin) {
    for (size_t h = 0; h < more.size(); ++h) {
      for (const int32_t row : more[h]) {
        (*to)[h].push_back(row + static_cast<int32_t>(begin));
      }
    }
  }

  // Pages that `positions` fill.
  static int64_t PagesFor(const Kept& positions) {
    int64_t units = 0;
    for (const auto& rows : positions) units += (std::ssize(rows) + 31) / 32;
    const int64_t per_page = kKv.layers * kKv.kv_heads * 2;
    return (units + per_page - 1) / per_page;
  }

  std::unique_ptr<KvPool> pool_;
};

TEST_F(RaggedPrefixTest, CompactingKeepsTheRowsAndGivesPagesBack) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 rng(seed);
    KvSequence sequence = pool_->NewSequence();
    const int64_t tokens = 64 * (1 + static_cast<int64_t>(rng() % 10)) - (seed % 3 == 0 ? 17 : 0);
    ASSERT_OK(sequence.Reserve(tokens + 200));
    const int64_t pages = sequence.page_count();
    Fill(sequence, 0, tokens);
    const Kept kept = RandomRows(tokens, &rng);
    sequence.Compact(RowsOf(kept));
    ASSERT_NE(sequence.prefix(), nullptr);
    EXPECT_EQ(sequence.base(), tokens);
    EXPECT_EQ(sequence.length(), tokens);
    ExpectRows(*sequence.prefix(), kept);
    EXPECT_EQ(sequence.prefix()->page_count(), PagesFor(kept)) << "seed " << seed;
    EXPECT_EQ(sequence.page_count(), pages - (tokens + 63) / 64);
    EXPECT_EQ(pool_->free_pages(), 64 - sequence.page_count() - PagesFor(kept));
  }
  EXPECT_EQ(pool_->free_pages(), 64);
}

TEST_F(RaggedPrefixTest, SegmentsFollowEachOtherWithoutGaps) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 rng(seed);
    KvSequence sequence = pool_->NewSequence();
    ASSERT_OK(sequence.Reserve(64 * 20));
    Kept all(static_cast<size_t>(kKv.layers * kKv.kv_heads));
    std::vector<std::pair<std::shared_ptr<const RaggedPrefix>, Kept>> before;
    for (int segment = 0; segment < 4; ++segment) {
      const int64_t begin = sequence.length();
      const int64_t end = begin + 64 * (1 + static_cast<int64_t>(rng() % 4));
      Fill(sequence, begin, end);
      const Kept kept = RandomRows(end - begin, &rng);
      sequence.Compact(RowsOf(kept));
      Add(&all, kept, begin);
      ExpectRows(*sequence.prefix(), all);
      EXPECT_EQ(sequence.prefix()->end(), end);
      // Units of all segments together fill pages to the last one.
      EXPECT_EQ(sequence.prefix()->page_count(), PagesFor(all)) << "seed " << seed;
      before.emplace_back(sequence.prefix(), all);
      // Tokens behind the prefix go where no row of it is.
      const int64_t tail = std::min<int64_t>(sequence.capacity(), end + 64);
      Fill(sequence, end, tail);
      sequence.SetLength(end);
    }
    // Units of an earlier segment that a push still reads stayed as they were.
    for (const auto& [prefix, rows] : before) ExpectRows(*prefix, rows);
  }
  EXPECT_EQ(pool_->free_pages(), 64);
}

TEST_F(RaggedPrefixTest, BuiltFromRowsItEqualsTheCompactedOne) {
  std::mt19937 rng(7);
  KvSequence sequence = pool_->NewSequence();
  ASSERT_OK(sequence.Reserve(64 * 6));
  Fill(sequence, 0, 64 * 6);
  const Kept kept = RandomRows(64 * 6, &rng);
  sequence.Compact(RowsOf(kept));
  const RaggedPrefix& from = *sequence.prefix();

  std::shared_ptr<const RaggedPrefix> built;
  for (const int64_t cut : {64 * 2, 64 * 6}) {
    RaggedBuilder builder(*pool_, built);
    std::vector<int64_t> more;
    for (size_t h = 0; h < kept.size(); ++h) {
      const auto end =
          std::count_if(kept[h].begin(), kept[h].end(), [&](int r) { return r < cut; });
      more.push_back(end - (built ? built->rows(static_cast<int>(h) / kKv.kv_heads,
                                                static_cast<int>(h) % kKv.kv_heads)
                                  : 0));
    }
    ASSERT_OK(builder.Reserve(more));
    for (int layer = 0; layer < kKv.layers; ++layer) {
      for (int head = 0; head < kKv.kv_heads; ++head) {
        int64_t at = built ? built->rows(layer, head) : 0;
        int64_t left = more[HeadOf(layer, head)];
        while (left > 0) {  // A few rows at a time, as blocks bring them.
          const int64_t count = std::min<int64_t>(left, 1 + static_cast<int64_t>(rng() % 50));
          std::vector<uint16_t> k(static_cast<size_t>(count * kKv.head_dim)), v(k.size());
          from.CopyRows(layer, head, at, count, k.data(), v.data());
          builder.Append(layer, head, k.data(), v.data(), count);
          at += count;
          left -= count;
        }
      }
    }
    built = builder.Finish(cut);
  }
  ExpectRows(*built, kept);
  EXPECT_EQ(built->page_count(), PagesFor(kept));
  EXPECT_EQ(built->end(), 64 * 6);
}

TEST_F(RaggedPrefixTest, KeepingNothingHoldsNoPage) {
  KvSequence sequence = pool_->NewSequence();
  ASSERT_OK(sequence.Reserve(128));
  Fill(sequence, 0, 128);
  sequence.Compact([](int, int) { return std::vector<int32_t>(); });
  EXPECT_EQ(sequence.prefix()->rows(), 0);
  EXPECT_EQ(pool_->free_pages(), 64);
  EXPECT_EQ(sequence.capacity(), 128);
  ASSERT_OK(sequence.Reserve(129));
  EXPECT_EQ(sequence.capacity(), 192);
}

TEST_F(RaggedPrefixTest, APoolThatIsTooSmallRefusesAndKeepsWhatItHas) {
  RaggedBuilder builder(*pool_, nullptr);
  const std::vector<int64_t> rows(static_cast<size_t>(kKv.layers * kKv.kv_heads), 64 * 65);
  EXPECT_THAT(builder.Reserve(rows), StatusIs(StatusCode::kResourceExhausted, HasSubstr("pages")));
  EXPECT_EQ(pool_->free_pages(), 64);
  ASSERT_OK(builder.Reserve(std::vector<int64_t>(rows.size(), 33)));
  EXPECT_EQ(pool_->free_pages(), 63);
}

TEST_F(RaggedPrefixTest, CapacityAndTruncationCountFromThePrefixOn) {
  KvSequence sequence = pool_->NewSequence();
  ASSERT_OK(sequence.Reserve(64 * 4));
  Fill(sequence, 0, 128);
  sequence.Compact([](int, int) { return std::vector<int32_t>{5}; });
  EXPECT_EQ(sequence.capacity(), 64 * 4);
  Fill(sequence, 128, 128 + 70);
  EXPECT_EQ(sequence.page_count(), 2);
  sequence.Truncate(128 + 64);
  EXPECT_EQ(sequence.page_count(), 1);
  EXPECT_EQ(sequence.length(), 192);
  KvSequence moved = std::move(sequence);
  EXPECT_EQ(moved.base(), 128);
  EXPECT_EQ(moved.prefix()->rows(), kKv.layers * kKv.kv_heads);
  moved.Clear();
  EXPECT_EQ(moved.base(), 0);
  EXPECT_EQ(pool_->free_pages(), 64);
}

// How many of these bytes, whole pages of the system, are in memory. Memory that a sanitizer
// allocates next to them does not count.
int64_t ResidentBytes(std::span<const std::span<std::byte>> memory) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  int64_t resident = 0;
  for (const std::span<std::byte> bytes : memory) {
    std::vector<unsigned char> pages(bytes.size() / page);
    EXPECT_EQ(mincore(bytes.data(), bytes.size(), pages.data()), 0);
    resident += std::ranges::count_if(pages, [](unsigned char p) { return (p & 1) != 0; });
  }
  return resident * static_cast<int64_t>(page);
}

TEST(RaggedMemoryTest, ResidentMemoryFollowsWhatIsKept) {
  // As many bytes a token as SmolLM2-135M has; 4,096 tokens are 90 MiB.
  const KvLayout kv{.layers = 30, .kv_heads = 3, .head_dim = 64, .block_tokens = 64};
  const std::unique_ptr<KvPool> pool = *KvPool::Create(kv, 80 * kv.page_bytes());
  KvSequence sequence = pool->NewSequence();
  ASSERT_OK(sequence.Reserve(4096));
  std::vector<std::span<std::byte>> memory;
  for (int64_t page = 0; page < 64; ++page) {
    memory.emplace_back(sequence.LayerSlice(page, 0).data(), kv.page_bytes());
    for (int layer = 0; layer < kv.layers; ++layer) {
      const auto slice = sequence.LayerSlice(page, layer);
      std::fill(slice.begin(), slice.end(), std::byte{1});
    }
  }
  sequence.SetLength(4096);
  const auto full = static_cast<double>(64 * kv.page_bytes());
  EXPECT_NEAR(static_cast<double>(ResidentBytes(memory)) / full, 1.0, 0.05);
  // A quarter, unequally: 1,024 rows in the mean, another number in each head.
  sequence.Compact([](int layer, int head) {
    std::vector<int32_t> rows;
    const int32_t count = 1024 + (layer % 2 == 0 ? 1 : -1) * (head * 100 + 7);
    for (int32_t i = 0; i < count; ++i) rows.push_back(i * 3);
    return rows;
  });
  EXPECT_EQ(sequence.prefix()->rows(), 1024 * 90);
  // Each head's last unit has half of its 32 rows to spare on average: 1.6 % here. Then pages are
  // whole ones.
  int64_t units = 0;
  for (int layer = 0; layer < kv.layers; ++layer) {
    for (int head = 0; head < kv.kv_heads; ++head) {
      units += std::ssize(sequence.prefix()->units(layer, head));
    }
  }
  EXPECT_NEAR(static_cast<double>(units) / (4096.0 / 32 * 90), 0.25, 0.25 * 0.05);
  EXPECT_EQ(sequence.prefix()->page_count(), (units + 179) / 180);
  const double pages = static_cast<double>(sequence.prefix()->page_count()) / 64;
  EXPECT_NEAR(static_cast<double>(ResidentBytes(memory)) / full, pages, pages * 0.05);
}

}  // namespace
}  // namespace cairn::worker
