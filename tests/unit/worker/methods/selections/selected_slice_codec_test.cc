#include "services/worker/methods/selections/selected_slice_codec.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "common/format/selected_slice.h"
#include "common/status/matchers.h"
#include "services/worker/session/worker_namespace.h"

namespace cairn::worker {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

constexpr KvLayout kKv{.layers = 3, .kv_heads = 4, .head_dim = 64, .block_tokens = 64};
constexpr const char* kCodecs[] = {"raw",     "int8",  "int8:sink=1",  "fp8",
                                   "int4",    "mixed", "turbo:bits=2", "turbo:bits=3,sink=0",
                                   "cachegen"};

std::unique_ptr<KvCodec> Make(const std::string& codec) {
  NamespaceInputs inputs;
  inputs.model = "toy";
  inputs.kv = kKv;
  inputs.numerics = "toy-1";
  inputs.recipe = "random:keep=0.5+" + codec;
  auto made = KvCodec::Create(*WorkerNamespace(inputs), kKv, SteadyClock::Get());
  CAIRN_CHECK(made.ok());
  return *std::move(made);
}

SelectedSlicePlace PlaceAt(uint64_t position) {
  return {.layer = 1, .first_position = position, .heads = 4, .block_tokens = 64};
}

// Halves of a half to one, of either sign.
struct Rows {
  explicit Rows(std::span<const uint64_t> masks, std::mt19937* rng) {
    for (const uint64_t mask : masks) {
      std::vector<uint16_t>& head =
          heads.emplace_back(2 * 64 * static_cast<size_t>(std::popcount(mask)));
      for (uint16_t& x : head)
        x = static_cast<uint16_t>((0x3800 + (*rng)() % 0x400) | ((*rng)() % 2) << 15);
    }
  }
  RowsReader Reader() const {
    return [this](uint32_t head, int64_t rows, uint16_t* k, uint16_t* v) {
      const auto numbers = static_cast<size_t>(rows) * 64;
      ASSERT_EQ(heads[head].size(), 2 * numbers);
      std::memcpy(k, heads[head].data(), numbers * 2);
      std::memcpy(v, heads[head].data() + numbers, numbers * 2);
    };
  }
  std::vector<std::vector<uint16_t>> heads;  // K, then V.
};

std::vector<std::byte> Encoded(const KvCodec& codec, const SelectedSlicePlace& place,
                               std::span<const uint64_t> masks, const Rows& rows) {
  std::vector<std::byte> slice;
  KvCodec::Scratch scratch;
  EXPECT_OK(AppendSelectedSlice(codec, place, 64, masks, rows.Reader(), scratch, &slice));
  return slice;
}

float Value(uint16_t half) {  // Normal halves, and zero.
  if ((half & 0x7fff) == 0) return 0;
  const float x =
      std::ldexp(1.0f + static_cast<float>(half & 0x3ff) / 1024, (half >> 10 & 31) - 15);
  return half >> 15 != 0 ? -x : x;
}

TEST(SelectedSliceCodecTest, EveryNumberOfRowsComesBackInEveryCodec) {
  std::mt19937 rng(1);
  for (const char* name : kCodecs) {
    const auto codec = Make(name);
    for (const uint64_t position : {0u, 640u}) {
      for (const uint64_t second :
           {uint64_t{0}, uint64_t{1}, uint64_t{1} << 63, uint64_t{7}, ~uint64_t{0}}) {
        const uint64_t masks[] = {1, second, 0, rng() | uint64_t{rng()} << 32};
        const Rows rows(masks, &rng);
        const std::vector<std::byte> slice = Encoded(*codec, PlaceAt(position), masks, rows);
        EXPECT_GE(slice.size(), format::LeastSelectedBytes(4, 64));
        EXPECT_LE(slice.size(), format::MostSelectedBytes(4, 64, kKv.layer_bytes())) << name;
        const auto heads = ParseSelectedSlice(*codec, PlaceAt(position), slice);
        ASSERT_OK(heads) << name;
        KvCodec::Scratch scratch;
        for (size_t h = 0; h < 4; ++h) {
          const SelectedHead& head = (*heads)[h];
          ASSERT_EQ(head.place.rows, std::popcount(masks[h])) << name;
          EXPECT_EQ(head.place.sequence_start, position == 0 && (masks[h] & 1) != 0);
          if (head.place.rows == 0) continue;
          const size_t numbers = rows.heads[h].size() / 2;
          std::vector<uint16_t> got(2 * numbers);
          ASSERT_OK(
              codec->DecodeRows(head.place, head.bytes, got.data(), got.data() + numbers, scratch))
              << name;
          if (codec->raw()) {
            ASSERT_EQ(got, rows.heads[h]);
            continue;
          }
          double error = 0, all = 0;
          for (size_t i = 0; i < got.size(); ++i) {
            const double want = Value(rows.heads[h][i]);
            error += (Value(got[i]) - want) * (Value(got[i]) - want);
            all += want * want;
          }
          ASSERT_LT(std::sqrt(error / all), 0.4) << name << ", head " << h;  // Two bits.
        }
      }
    }
  }
}

TEST(SelectedSliceCodecTest, TheFirstTokenIsASinkOnlyWhereItIsKept) {
  std::mt19937 rng(2);
  const auto codec = Make("turbo:bits=4,sink=1");
  const uint64_t with[] = {1, 3, 1, 1}, without[] = {2, 6, 2, 2};
  const size_t at_start = Encoded(*codec, PlaceAt(0), with, Rows(with, &rng)).size();
  EXPECT_GT(at_start, Encoded(*codec, PlaceAt(64), with, Rows(with, &rng)).size());
  EXPECT_EQ(Encoded(*codec, PlaceAt(0), without, Rows(without, &rng)).size(),
            Encoded(*codec, PlaceAt(64), without, Rows(without, &rng)).size());
}

TEST(SelectedSliceCodecTest, EveryTruncationAndEveryLongerSliceIsDataLoss) {
  std::mt19937 rng(3);
  for (const char* name : kCodecs) {
    const auto codec = Make(name);
    const uint64_t masks[] = {0x11, 0, 1, 0xff00};
    std::vector<std::byte> slice = Encoded(*codec, PlaceAt(0), masks, Rows(masks, &rng));
    for (size_t bytes = 0; bytes < slice.size(); ++bytes) {
      ASSERT_THAT(ParseSelectedSlice(*codec, PlaceAt(0), std::span(slice).first(bytes)),
                  StatusIs(StatusCode::kDataLoss, HasSubstr("bytes")))
          << name << " cut to " << bytes;
    }
    slice.push_back(std::byte{0});
    ASSERT_THAT(ParseSelectedSlice(*codec, PlaceAt(0), slice),
                StatusIs(StatusCode::kDataLoss, HasSubstr("1 are left")))
        << name;
  }
}

TEST(SelectedSliceCodecTest, MasksThatSayOtherRowsAreDataLoss) {
  std::mt19937 rng(4);
  for (const char* name : {"raw", "int8", "turbo:bits=3,sink=0"}) {
    const auto codec = Make(name);
    const uint64_t masks[] = {0x11, 0, 1, 0xff00};
    const std::vector<std::byte> slice = Encoded(*codec, PlaceAt(64), masks, Rows(masks, &rng));
    for (size_t bit = 0; bit < 4 * 64; ++bit) {
      std::vector<std::byte> damaged = slice;
      damaged[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      EXPECT_THAT(ParseSelectedSlice(*codec, PlaceAt(64), damaged),
                  StatusIs(StatusCode::kDataLoss, HasSubstr("bytes")))
          << name << ", bit " << bit;
    }
  }
}

TEST(SelectedSliceCodecTest, NumbersThatAreNotFiniteAreNotStored) {
  std::mt19937 rng(5);
  const auto codec = Make("int8");
  const uint64_t masks[] = {1, 1, 1, 1};
  Rows rows(masks, &rng);
  rows.heads[2][3] = 0x7e00;
  std::vector<std::byte> slice;
  KvCodec::Scratch scratch;
  EXPECT_THAT(AppendSelectedSlice(*codec, PlaceAt(0), 64, masks, rows.Reader(), scratch, &slice),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("not finite")));
}

}  // namespace
}  // namespace cairn::worker
