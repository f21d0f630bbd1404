// Slices that are decoded on a device, over a fake device whose kernels are the real ones'
// emulation: pages and slots as the CPU's decoder makes them, and what goes wrong.
#include "services/worker/compute/device/slice_decoder.h"

#include <gtest/gtest.h>

#include <cstring>

#include "cairn/common/hash.h"
#include "common/status/matchers.h"
#include "kernels/codecs/registry.h"
#include "tests/unit/worker/compute/device/slice_fixture.h"

namespace cairn::worker {
namespace {

using codecs::Plane;
using testing::CodecCase;
using testing::kCodecCases;
using Outcome = SliceLoader::Outcome;

constexpr KvLayout kKv = testing::kSliceKv;

class SliceDecoderTest : public testing::SliceFixture {
 protected:
  void Start(uint64_t seed, int64_t slots = 8) {
    decoder_.reset();
    StartDevice(seed, slots);
    decoder_ = *SliceDecoder::Create(device_, kKv, *kernels_, *mirror_);
  }
  // Encoded slices of blocks and layers, the planes that the CPU decodes, and pages to fill.
  struct Encoded {
    std::vector<std::byte> bytes, decoded, page;
    SliceLoader::Slice slice;
  };
  std::vector<Encoded> Encode(const CodecCase& c, int blocks) {
    const auto codec = codecs::MakeCodec(c.codec, c.values);
    form_ = testing::FormOf(c, kKv, kKv.kv_heads);
    std::vector<Encoded> all;
    for (int block = 0; block < blocks; ++block) {
      for (int layer = 0; layer < kKv.layers; ++layer) {
        Encoded e;
        std::vector<uint16_t> numbers(kKv.layer_bytes() / 2);
        for (uint16_t& n : numbers) n = RandomHalf();
        const codecs::SlicePlace place{layer, int64_t{block} * kKv.block_tokens};
        const int64_t stride = int64_t{kKv.block_tokens} * kKv.head_dim;
        const Plane k{numbers.data(), kKv.kv_heads, kKv.head_dim, stride, kKv.head_dim};
        Plane v = k;
        v.data += kKv.plane_bytes() / 2;
        const codecs::SliceShape shape = codecs::ShapeOf(k, v, kKv.block_tokens);
        std::vector<std::byte> scratch(codec->ScratchBytes(shape));
        e.bytes.resize(codec->MaxEncodedBytes(shape, place));
        e.bytes.resize(codec->Encode(k, v, kKv.block_tokens, place, e.bytes, scratch).bytes);
        e.decoded.resize(kKv.layer_bytes());
        auto* const out = reinterpret_cast<uint16_t*>(e.decoded.data());
        const codecs::MutablePlane to_k{out, k.heads, k.dim, k.head_stride, k.token_stride};
        codecs::MutablePlane to_v = to_k;
        to_v.data += kKv.plane_bytes() / 2;
        CAIRN_CHECK(codec->Decode(e.bytes, to_k, to_v, kKv.block_tokens, place, scratch) ==
                    codecs::CodecStatus::kOk);
        e.page.resize(kKv.layer_bytes(), std::byte{0xee});
        e.slice.stamp = 100 + static_cast<uint64_t>(block);
        e.slice.layer = layer;
        e.slice.first_position = place.first_position;
        e.slice.bytes = e.bytes.size();
        e.slice.xxh3 = Xxh3(e.bytes);
        all.push_back(std::move(e));
      }
    }
    for (Encoded& e : all) {
      e.slice.host = e.bytes.data();
      e.slice.page = e.page.data();
    }
    return all;
  }
  std::vector<Outcome> Load(const std::vector<Encoded>& all) {
    std::vector<SliceLoader::Slice> slices;
    for (const Encoded& e : all) slices.push_back(e.slice);
    return decoder_->Load(form_, slices);
  }
  // The bytes that the device has of a slice; none if the slot lacks the layer.
  std::vector<std::byte> InSlot(const SliceLoader::Slice& slice) {
    mirror_->BeginPass();
    KvMirror::Slot* const slot = *mirror_->Hold(slice.stamp);
    std::vector<std::byte> bytes;
    if (mirror_->TakeMissing({&slot, 1}, slice.layer).empty()) {
      const auto* const at = reinterpret_cast<const std::byte*>(
          slot->address + kKv.layer_bytes() * static_cast<uint64_t>(slice.layer));
      bytes.assign(at, at + kKv.layer_bytes());
    }
    mirror_->EndPass(/*failed=*/false);
    return bytes;
  }

  kernels::SliceForm form_;
  std::unique_ptr<SliceDecoder> decoder_;
};

TEST_F(SliceDecoderTest, SlotsAndPagesHaveWhatTheCpuDecodes) {
  for (const CodecCase& c : kCodecCases) {
    SCOPED_TRACE(c.codec);
    Start(/*seed=*/c.codec.size());
    // Half of them lie in the device's memory, as in a node's chunk, at any byte.
    std::vector<Encoded> all = Encode(c, 3);
    const device::DeviceMemory chunk = *device_->Allocate(1 << 20, /*exportable=*/false);
    uint64_t at = chunk.address() + 3;
    for (size_t i = 0; i < all.size(); i += 2) {
      std::memcpy(reinterpret_cast<void*>(at), all[i].bytes.data(), all[i].bytes.size());
      all[i].slice.address = at;
      at += all[i].bytes.size();
    }
    EXPECT_EQ(Load(all), std::vector<Outcome>(6, Outcome::kGood));
    for (const Encoded& e : all) {
      EXPECT_EQ(e.page, e.decoded);
      EXPECT_EQ(InSlot(e.slice), e.decoded);
    }
  }
}

TEST_F(SliceDecoderTest, ABitFlipIsFoundOnTheDeviceAndTouchesNothingElse) {
  for (const uint64_t seed : {1, 2, 3}) {
    Start(seed);
    std::vector<Encoded> all = Encode({"turbo", {4, 4, 1}}, 2);
    all[2].bytes[99] ^= std::byte{0x10};
    EXPECT_EQ(Load(all), (std::vector<Outcome>{Outcome::kGood, Outcome::kGood, Outcome::kWrong,
                                               Outcome::kGood}));
    EXPECT_EQ(all[2].page, std::vector<std::byte>(kKv.layer_bytes(), std::byte{0xee}));
    EXPECT_TRUE(InSlot(all[2].slice).empty());
    EXPECT_EQ(InSlot(all[3].slice), all[3].decoded);
  }
}

TEST_F(SliceDecoderTest, BytesThatNoEncoderWritesAreWrongUnderARightHash) {
  Start(1);
  std::vector<Encoded> all = Encode({"int8", {64, 0}}, 1);
  // The first scale: a negative one.
  all[0].bytes[1] |= std::byte{0x80};
  all[0].slice.xxh3 = Xxh3(all[0].bytes);
  EXPECT_EQ(Load(all), (std::vector<Outcome>{Outcome::kWrong, Outcome::kGood}));
  EXPECT_TRUE(InSlot(all[0].slice).empty());
}

TEST_F(SliceDecoderTest, PagesOfAPassKeepTheirSlots) {
  Start(1, /*slots=*/2);
  std::vector<Encoded> all = Encode({"fp8", {0}}, 3);
  mirror_->BeginPass();
  ASSERT_OK(mirror_->Hold(1000));
  // One slot is left for three pages, and each has it until its slices are there.
  const std::vector<Outcome> outcomes = Load({all[0], all[1]});
  EXPECT_EQ(outcomes, std::vector<Outcome>(2, Outcome::kGood));
  EXPECT_EQ(Load({all[0], all[2]}), (std::vector<Outcome>{Outcome::kGood, Outcome::kUnread}));
  ASSERT_OK(mirror_->Hold(1000));
  ASSERT_OK(mirror_->Hold(all[0].slice.stamp));
  EXPECT_EQ(Load({all[4]}), std::vector<Outcome>{Outcome::kUnread});
  mirror_->EndPass(/*failed=*/false);
  EXPECT_EQ(Load({all[4]}), std::vector<Outcome>{Outcome::kGood});
}

TEST_F(SliceDecoderTest, WorkThatFailsAndLostDevicesLeaveSlicesUnread) {
  Start(1);
  const std::vector<Encoded> all = Encode({"fp8", {0}}, 1);
  fake_->control().fail("copy", 0, 1, device::Code::kOther);
  EXPECT_EQ(Load(all), std::vector<Outcome>(2, Outcome::kUnread));
  EXPECT_EQ(Load(all), std::vector<Outcome>(2, Outcome::kGood));
  fake_->control().lose(0);
  EXPECT_EQ(Load(all), std::vector<Outcome>(2, Outcome::kUnread));
}

}  // namespace
}  // namespace cairn::worker
