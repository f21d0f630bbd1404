// Blocks that are encoded out of an engine's pages and decoded into them, on the fake device with
// emulated kernels: the bits are those of the codecs on a CPU.

#include "clients/pages/coded_form.h"

#include <gmock/gmock.h>

#include <bit>
#include <random>
#include <utility>

#include "clients/pages/page_mover.h"
#include "common/recipe/recipe.h"
#include "common/status/matchers.h"
#include "kernels/slices/bfloat16.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/support/fake_kernels/slice_kernels.h"
#include "tests/unit/clients/pages/value.h"

namespace cairn::pages {
namespace {

using ::cairn::testing::StatusIs;
using device::fake::FakeDevices;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kLayers = 2, kHeads = 2, kDim = 64, kTokens = 16, kBlocks = 8;
// Numbers of the keys in a block's layer.
constexpr uint64_t kNumbers = uint64_t{kHeads} * kTokens * kDim;

// How engines keep a layer of a block: [tokens][heads][keys, values] and so on.
enum class Order { kHeadsTokens, kTokensHeads, kHeadsBeforeBlocks };

struct Case {
  const char* codec;
  Order order;
  bool bfloat16;
};

std::vector<uint16_t> RandomHalves(uint64_t seed) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::normal_distribution<float> normal;
  std::vector<uint16_t> halves(kNumbers);
  for (uint16_t& half : halves) half = kernels::HalfOfFloat(normal(random));
  return halves;
}

// Half precision numbers that bfloat16 has, too.
std::vector<uint16_t> RandomShortHalves(uint64_t seed) {
  std::vector<uint16_t> halves = RandomHalves(seed);
  for (uint16_t& half : halves) half = static_cast<uint16_t>(half & 0xfff8);
  return halves;
}

// Pages on the fake device, [layers] planes of keys and values in one of the orders.
class Engine {
 public:
  Engine(FakeDevices* fake, const Case& c)
      : fake_(*fake),
        case_(c),
        device_(fake->Open()),
        stream_(*device_->NewStream()),
        kv_(*device_->Allocate(kLayers * kBlocks * 2 * kNumbers * 2, false)),
        codec_(Value(BlockCodec::Create(c.codec, {kLayers, kHeads, kDim, kDim, kTokens}))) {
    pages_.blocks = kBlocks;
    pages_.bfloat16 = c.bfloat16;
    constexpr int64_t kRow = 2 * kDim;  // A key and its value.
    uint64_t stride = 2 * kNumbers * 2;
    switch (c.order) {
      case Order::kHeadsTokens:
        pages_.k = {kTokens * kRow, kRow};
        break;
      case Order::kTokensHeads:
        pages_.k = {kRow, kHeads * kRow};
        break;
      case Order::kHeadsBeforeBlocks:
        pages_.k = {kBlocks * kTokens * kRow, kRow};
        stride = kTokens * kRow * 2;
        break;
    }
    pages_.v = pages_.k;
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
      const uint64_t at = kv_.address() + layer * kBlocks * 2 * kNumbers * 2;
      pages_.layers.push_back({at, at + kDim * 2, stride});
    }
    auto form = Value(CodedForm(codec_, pages_, *SliceKernelsOf(device_.get())));
    mover_ = Value(PageMover::Create(device_, std::move(form), {8, 8}, &poller_));
  }
  ~Engine() {
    mover_.reset();
    const auto end = device_->NewEvent();
    if (end.ok() && stream_.Record(*end).ok()) (void)end->Synchronize();
  }

  PageMover& mover() { return *mover_; }
  void* native() { return stream_.native(); }
  const BlockCodec& codec() const { return codec_; }

  // Number i of keys or values, [heads][tokens][dim], in a layer of a block.
  uint16_t* At(uint32_t layer, bool values, uint32_t block, uint64_t i) {
    const auto head = static_cast<int64_t>(i / (kTokens * kDim));
    const auto token = static_cast<int64_t>(i / kDim % kTokens);
    const CodedLayer& of = pages_.layers[layer];
    return reinterpret_cast<uint16_t*>((values ? of.v : of.k) + block * of.block_stride) +
           head * pages_.k.head + token * pages_.k.token + i % kDim;
  }
  void Write(uint32_t layer, bool values, uint32_t block, const std::vector<uint16_t>& halves) {
    for (uint64_t i = 0; i < kNumbers; ++i) {
      *At(layer, values, block, i) =
          case_.bfloat16 ? kernels::Bfloat16OfHalf(halves[i]) : halves[i];
    }
  }
  std::vector<uint16_t> Read(uint32_t layer, bool values, uint32_t block) {
    std::vector<uint16_t> numbers(kNumbers);
    for (uint64_t i = 0; i < kNumbers; ++i) numbers[i] = *At(layer, values, block, i);
    return numbers;
  }

  Status Await(const Transfer& transfer) {
    while (!transfer.result()) poller_.Step();
    return *transfer.result();
  }
  PageMover::Save Save(std::span<const uint32_t> blocks, std::span<const uint64_t> positions) {
    auto save = Value(mover_->SaveBlocks(native(), blocks, positions));
    EXPECT_EQ(Await(*save.transfer), OkStatus());
    return save;
  }
  // Puts flat bytes into slots and from there into blocks.
  std::shared_ptr<Transfer> Load(const std::vector<std::vector<std::byte>>& flat,
                                 std::span<const uint32_t> blocks,
                                 std::span<const uint64_t> positions) {
    const auto fence = Value(mover_->MakeFence(native()));
    const auto slots = mover_->AwaitLoadSlots(blocks.size(), TimePoint::max());
    for (size_t i = 0; i < slots.size(); ++i) {
      const auto slot = mover_->load_slot(slots[i]);
      fake_.HostWrites(slot.data(), flat[i].size());
      std::copy(flat[i].begin(), flat[i].end(), slot.begin());
    }
    auto transfer = Value(mover_->LoadBlocks(*fence, slots, blocks, positions));
    EXPECT_EQ(Await(*transfer), OkStatus());
    return transfer;
  }
  std::vector<std::byte> SlotBytes(uint32_t slot, uint64_t position) {
    const auto bytes = mover_->save_slot(slot).first(codec_.BlockBytes(position));
    fake_.HostReads(bytes.data(), bytes.size());
    return {bytes.begin(), bytes.end()};
  }

 private:
  FakeDevices& fake_;
  const Case case_;
  std::shared_ptr<device::Device> device_;
  device::Stream stream_;
  device::DeviceMemory kv_;
  const BlockCodec codec_;
  CodedPages pages_;
  device::EventPoller poller_;
  std::unique_ptr<PageMover> mover_;
};

// The bytes that the codec on a CPU makes of the same numbers.
class CpuCodec {
 public:
  explicit CpuCodec(const char* codec)
      : codec_(Value(ParseRecipe(codec)).rungs.front().codec.Make()) {}

  std::vector<std::byte> Encode(const std::vector<uint16_t>& k, const std::vector<uint16_t>& v,
                                uint32_t layer, uint64_t position) const {
    std::vector<std::byte> scratch(codec_->ScratchBytes(kShape));
    std::vector<std::byte> out(codec_->MaxEncodedBytes(kShape, Place(layer, position)));
    const auto result = codec_->Encode(View<codecs::Plane>(k.data()), View<codecs::Plane>(v.data()),
                                       kTokens, Place(layer, position), out, scratch);
    CAIRN_CHECK(result.status == codecs::CodecStatus::kOk);
    return out;
  }
  std::pair<std::vector<uint16_t>, std::vector<uint16_t>> Decode(std::span<const std::byte> in,
                                                                 uint32_t layer,
                                                                 uint64_t position) const {
    std::vector<std::byte> scratch(codec_->ScratchBytes(kShape));
    std::vector<uint16_t> k(kNumbers), v(kNumbers);
    CAIRN_CHECK(codec_->Decode(in, View<codecs::MutablePlane>(k.data()),
                               View<codecs::MutablePlane>(v.data()), kTokens,
                               Place(layer, position), scratch) == codecs::CodecStatus::kOk);
    return {std::move(k), std::move(v)};
  }

 private:
  static constexpr codecs::SliceShape kShape = {kTokens, kHeads, kDim, kHeads, kDim};
  static codecs::SlicePlace Place(uint32_t layer, uint64_t position) {
    return {.layer = layer, .first_position = static_cast<int64_t>(position)};
  }
  template <typename Plane, typename Number>
  static Plane View(Number* numbers) {
    return {numbers, kHeads, kDim, int64_t{kTokens} * kDim, kDim};
  }

  std::unique_ptr<codecs::Codec> codec_;
};

class CodedFormTest : public ::testing::TestWithParam<Case> {
 protected:
  CodedFormTest() : fake_({.seed = 3}) {
    kernels::testing::AddSliceKernels(fake_.control());
    engine_ = std::make_unique<Engine>(&fake_, GetParam());
  }

  FakeDevices fake_;
  std::unique_ptr<Engine> engine_;
};
INSTANTIATE_TEST_SUITE_P(Codecs, CodedFormTest,
                         ::testing::Values(Case{"int8", Order::kHeadsTokens, false},
                                           Case{"int8:group=32,sink=1", Order::kTokensHeads, true},
                                           Case{"int4", Order::kTokensHeads, false},
                                           Case{"fp8", Order::kHeadsBeforeBlocks, true},
                                           Case{"turbo:bits=4,sink=1", Order::kHeadsTokens, true},
                                           Case{"turbo:bits=3,v=2", Order::kHeadsBeforeBlocks,
                                                false},
                                           Case{"mixed", Order::kTokensHeads, false}));

TEST_P(CodedFormTest, BytesAndNumbersAreThoseOfTheCodecOnACpu) {
  const CpuCodec cpu(GetParam().codec);
  const uint32_t blocks[] = {5, 2, 3}, others[] = {0, 7, 1};
  const uint64_t positions[] = {0, kTokens, 9 * kTokens};
  std::vector<std::vector<std::byte>> expected(3);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (uint32_t i = 0; i < 3; ++i) {
      const auto k = RandomShortHalves(layer * 10 + i), v = RandomShortHalves(100 + layer * 10 + i);
      engine_->Write(layer, false, blocks[i], k);
      engine_->Write(layer, true, blocks[i], v);
      const auto slice = cpu.Encode(k, v, layer, positions[i]);
      expected[i].insert(expected[i].end(), slice.begin(), slice.end());
    }
  }
  const auto save = engine_->Save(blocks, positions);
  EXPECT_THAT(save.transfer->refused(), IsEmpty());
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(engine_->SlotBytes(save.slots[i], positions[i]) == expected[i]) << "block " << i;
  }

  const auto load = engine_->Load(expected, others, positions);
  EXPECT_THAT(load->refused(), IsEmpty());
  for (uint32_t i = 0; i < 3; ++i) {
    const uint64_t slice = engine_->codec().SliceBytes(positions[i]);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      auto [k, v] =
          cpu.Decode(std::span(expected[i]).subspan(layer * slice, slice), layer, positions[i]);
      if (GetParam().bfloat16) {
        for (auto* numbers : {&k, &v}) {
          for (uint16_t& number : *numbers) number = kernels::Bfloat16OfHalf(number);
        }
      }
      EXPECT_TRUE(engine_->Read(layer, false, others[i]) == k) << i << " layer " << layer;
      EXPECT_TRUE(engine_->Read(layer, true, others[i]) == v) << i << " layer " << layer;
    }
  }
}

TEST_P(CodedFormTest, ABlockWithANumberThatCannotBeStoredIsRefusedAlone) {
  const uint32_t blocks[] = {1, 2, 3};
  const uint64_t positions[] = {0, kTokens, 2 * kTokens};
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (const uint32_t block : blocks) {
      engine_->Write(layer, false, block, RandomShortHalves(block));
      engine_->Write(layer, true, block, RandomShortHalves(block + 50));
    }
  }
  // Not finite; of bfloat16 a number below all halves.
  *engine_->At(1, true, 2, 77) = GetParam().bfloat16 ? 0x0080 : 0x7c00;
  const auto save = engine_->Save(blocks, positions);
  EXPECT_THAT(save.transfer->refused(), ElementsAre(1));
  engine_->mover().GiveBackSaveSlots(save.slots);
  // The slots' words of faults are cleared before they are used again.
  engine_->Write(1, true, 2, RandomShortHalves(7));
  EXPECT_THAT(engine_->Save(blocks, positions).transfer->refused(), IsEmpty());
}

TEST(BlockCodecTest, SizesAreThoseOfTheCodec) {
  const BlockShape shape = {kLayers, kHeads, kDim, kDim, kTokens};
  const auto codec = Value(BlockCodec::Create("int8:group=64,sink=1", shape));
  EXPECT_EQ(codec.canonical(), "int8:group=64,sink=1");
  const uint64_t later = kLayers * 2 * kHeads * kTokens * (kDim + 2);
  EXPECT_EQ(codec.BlockBytes(kTokens), later);
  EXPECT_GT(codec.BlockBytes(0), later);
  EXPECT_EQ(codec.MostBytes(), codec.BlockBytes(0));
}

TEST(BlockCodecTest, WhatCannotStoreBlocksIsRefusedWithTheReason) {
  const BlockShape shape = {kLayers, kHeads, kDim, kDim, kTokens};
  const std::pair<const char*, const char*> refused[] = {
      {"raw", "expected a codec that makes blocks smaller"},
      {"nothing", "codec"},
      {"cachegen", "whose blocks have one size"},
      {"streaming:keep=0.5+int8", "without a selection of rows"},
      {"host=int8>disk=turbo:bits=4", "for all tiers"},
  };
  for (const auto& [codec, reason] : refused) {
    EXPECT_THAT(BlockCodec::Create(codec, shape).status(),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr(reason)))
        << codec;
  }
  EXPECT_THAT(BlockCodec::Create("turbo", {kLayers, kHeads, 80, 80, kTokens}).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("cannot store the model's KV")));
  EXPECT_THAT(BlockCodec::Create("int8", {}).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("got 0 layers")));
}

TEST(CodedPagesTest, PlacesThatKernelsCannotReadAreNamed) {
  FakeDevices fake;
  kernels::testing::AddSliceKernels(fake.control());
  const auto device = fake.Open();
  const auto* const kernels = SliceKernelsOf(device.get());
  const auto codec = Value(BlockCodec::Create("int8", {1, kHeads, kDim, kDim, kTokens}));
  const CodedPages good = {{{1 << 20, 2 << 20, 4096}}, 4, {1024, 64}, {1024, 64}, false};
  EXPECT_EQ(CodedForm(codec, good, *kernels).status(), OkStatus());
  const auto refusal = [&](auto change) {
    CodedPages pages = good;
    change(pages);
    return std::string(Message(CodedForm(codec, pages, *kernels).status()));
  };
  EXPECT_THAT(refusal([](CodedPages& p) { p.layers.clear(); }), HasSubstr("field 'layers': got 0"));
  EXPECT_THAT(refusal([](CodedPages& p) { p.blocks = 0; }), HasSubstr("field 'blocks'"));
  EXPECT_THAT(refusal([](CodedPages& p) { p.layers[0].v += 8; }), HasSubstr("'layers[0]'"));
  EXPECT_THAT(refusal([](CodedPages& p) { p.layers[0].block_stride = 72; }),
              HasSubstr("'layers[0]'"));
  EXPECT_THAT(refusal([](CodedPages& p) { p.v.token = 68; }), HasSubstr("'v.token': got 68"));
  EXPECT_THAT(refusal([](CodedPages& p) { p.k.head = 0; }), HasSubstr("'k.head': got 0"));
}

}  // namespace
}  // namespace cairn::pages
