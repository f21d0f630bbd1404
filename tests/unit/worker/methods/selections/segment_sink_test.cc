// Where the slices of segments are decoded, and what becomes of those that are wrong. A loader that
// says what the test wants stands for the device.
#include "services/worker/methods/selections/segment_sink.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "cairn/common/hash.h"
#include "common/format/selected_slice.h"
#include "common/status/matchers.h"
#include "services/worker/session/worker_namespace.h"

namespace cairn::worker {
namespace {

constexpr KvLayout kKv{.layers = 2, .kv_heads = 2, .head_dim = 64, .block_tokens = 64};
constexpr uint32_t kBlocks = 3;

class NodeMemory final : public client::LentHold {
 public:
  bool Pinned() const override { return true; }
};

// Decodes as a device would, with the CPU's codec, where `outcome` says so.
class FakeLoader final : public SliceLoader {
 public:
  explicit FakeLoader(const KvCodec& codec) : codec_(codec) {}
  std::string device() const override { return "fake"; }
  std::vector<Outcome> Load(const kernels::SliceForm&, std::span<const Slice> slices) override {
    return std::vector<Outcome>(slices.size(), Outcome::kUnread);
  }
  void LoadRows(const kernels::SliceForm& form, std::span<const RowsSlice> slices,
                const TakeRows& take) override {
    EXPECT_EQ(form.k.heads, 1);
    for (size_t i = 0; i < slices.size(); ++i) {
      const bool right = Xxh3({slices[i].host, slices[i].bytes}) == slices[i].xxh3;
      const Outcome result = right ? outcome : Outcome::kWrong;
      std::vector<uint16_t> rows;
      for (const RowsOfHead& head : slices[i].heads) {
        const auto plane = static_cast<size_t>(head.rows) * 64;
        rows.resize(rows.size() + 2 * plane);
        uint16_t* const k = rows.data() + rows.size() - 2 * plane;
        if (result != Outcome::kGood) continue;
        EXPECT_OK(codec_.DecodeRows({slices[i].layer, head.sequence_start, head.rows},
                                    {slices[i].host + head.offset, head.bytes}, k, k + plane,
                                    scratch_));
      }
      ++slices_taken;
      take(i, result, result == Outcome::kGood ? rows : std::vector<uint16_t>());
    }
  }

  Outcome outcome = Outcome::kGood;
  int slices_taken = 0;

 private:
  const KvCodec& codec_;
  KvCodec::Scratch scratch_;
};

class SegmentSinkTest : public ::testing::Test {
 protected:
  SegmentSinkTest() { Use("int8:sink=1"); }
  void Use(const std::string& codec) {
    NamespaceInputs inputs;
    inputs.model = "toy";
    inputs.kv = kKv;
    inputs.numerics = "toy-1";
    inputs.recipe = "random:keep=0.5+" + codec;
    codec_ = *KvCodec::Create(*WorkerNamespace(inputs), kKv, SteadyClock::Get());
    slices_.clear();
    std::mt19937 rng(3);
    for (uint32_t block = 0; block < kBlocks; ++block) {
      for (uint32_t layer = 0; layer < 2; ++layer) slices_.push_back(Encoded(block, layer, &rng));
    }
  }
  // A head that keeps some rows, and one that keeps none of block 1.
  std::vector<std::byte> Encoded(uint32_t block, uint32_t layer, std::mt19937* rng) {
    const uint64_t masks[] = {(*rng)() | 1u, block == 1 ? 0 : uint64_t{(*rng)()} << 20};
    std::vector<std::byte> slice;
    KvCodec::Scratch scratch;
    const RowsReader read = [&](uint32_t, int64_t rows, uint16_t* k, uint16_t* v) {
      for (int64_t i = 0; i < rows * 64; ++i) {
        k[i] = static_cast<uint16_t>(0x3800 + (*rng)() % 0x400);
        v[i] = static_cast<uint16_t>(0xb800 + (*rng)() % 0x400);
      }
    };
    EXPECT_OK(AppendSelectedSlice(*codec_,
                                  {.layer = static_cast<int>(layer),
                                   .first_position = uint64_t{block} * 64,
                                   .heads = 2,
                                   .block_tokens = 64},
                                  64, masks, read, scratch, &slice));
    return slice;
  }
  // A sink to which all slices have come: those of later blocks first, out of the node's memory.
  std::unique_ptr<SegmentSink> Filled(SliceLoader* loader) {
    auto sink = std::make_unique<SegmentSink>(kKv, *codec_, kBlocks,
                                              SegmentSink::Options{.loader = loader});
    const auto hold = std::make_shared<NodeMemory>();
    for (uint32_t i = kBlocks * 2; i-- > 0;) {
      client::SliceInfo slice = {};
      slice.block = i / 2;
      slice.layer = i % 2;
      slice.codec = codec_->id();
      slice.part = {.layer_begin = 0, .layer_end = 2, .head_begin = 0, .head_end = 2};
      slice.slice_bytes = slices_[i].size();
      slice.xxh3 = Xxh3(slices_[i]);
      EXPECT_OK(sink->OnLentSlice(slice, slices_[i], hold));
    }
    EXPECT_EQ(sink->CompletePrefix(), kBlocks);
    return sink;
  }
  // Rows of all heads, K then V; none if the sink named a bad block, which goes to `bad`.
  std::vector<uint16_t> Decoded(const SegmentSink& sink, std::optional<uint32_t>* bad = nullptr) {
    RaggedBuilder builder(*pool_, nullptr);
    EXPECT_OK(builder.Reserve(sink.Rows(kBlocks)));
    const auto result = sink.Decode(kBlocks, threads_, &builder);
    if (bad != nullptr) *bad = result;
    const auto prefix = builder.Finish(kBlocks * 64);
    std::vector<uint16_t> all;
    for (int layer = 0; layer < 2 && !result; ++layer) {
      for (int head = 0; head < 2; ++head) {
        const auto plane = static_cast<size_t>(prefix->rows(layer, head)) * 64;
        std::vector<uint16_t> rows(2 * plane);
        prefix->CopyRows(layer, head, 0, prefix->rows(layer, head), rows.data(),
                         rows.data() + plane);
        all.insert(all.end(), rows.begin(), rows.end());
      }
    }
    return all;
  }

  std::unique_ptr<KvPool> pool_ = *KvPool::Create(kKv, 64 * kKv.page_bytes());
  kernels::ThreadPool threads_{1};
  std::unique_ptr<const KvCodec> codec_;
  std::vector<std::vector<std::byte>> slices_;  // [blocks][layers]
};

TEST_F(SegmentSinkTest, RowsAreTheSameWhereverTheyAreDecoded) {
  for (const char* const codec : {"int8:sink=1", "turbo:bits=4", "cachegen"}) {
    SCOPED_TRACE(codec);
    Use(codec);
    const std::vector<uint16_t> want = Decoded(*Filled(nullptr));
    ASSERT_FALSE(want.empty());
    FakeLoader loader(*codec_);
    EXPECT_EQ(Decoded(*Filled(&loader)), want);
    EXPECT_EQ(loader.slices_taken, 6);
    EXPECT_GT(codec_->GetStats().at(0).decode.bytes_out, 0u);
    // The slices that the device did not do, the CPU does.
    loader.outcome = SliceLoader::Outcome::kUnread;
    EXPECT_EQ(Decoded(*Filled(&loader)), want);
  }
}

TEST_F(SegmentSinkTest, RawRowsAreCopiedAndNeverSentThroughTheDevice) {
  Use("raw");
  FakeLoader loader(*codec_);
  EXPECT_EQ(Decoded(*Filled(&loader)), Decoded(*Filled(nullptr)));
  EXPECT_EQ(loader.slices_taken, 0);
}

TEST_F(SegmentSinkTest, AFlipOnTheWayToTheDeviceCostsNoBlock) {
  const std::vector<uint16_t> want = Decoded(*Filled(nullptr));
  FakeLoader loader(*codec_);
  loader.outcome = SliceLoader::Outcome::kWrong;  // The bytes here are right.
  EXPECT_EQ(Decoded(*Filled(&loader)), want);
}

TEST_F(SegmentSinkTest, BytesThatChangedAfterTheyCameAreABadBlock) {
  FakeLoader loader(*codec_);
  const auto sink = Filled(&loader);
  // In a head's rows, where the codec would notice nothing.
  slices_[3].back() ^= std::byte{1};
  std::optional<uint32_t> bad;
  Decoded(*sink, &bad);
  EXPECT_EQ(bad, std::optional<uint32_t>(1));
}

}  // namespace
}  // namespace cairn::worker
