// Pages that are encoded out of a device's slots, over a fake device whose kernels are the real
// ones' emulation: the bytes of the CPU's codecs, and what is left to the CPU.
#include "services/worker/compute/device/device_page_encoder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <thread>

#include "cairn/common/hash.h"
#include "common/status/matchers.h"
#include "kernels/codecs/registry.h"
#include "tests/support/fake_kernels/forward_kernels.h"
#include "tests/unit/worker/compute/device/slice_fixture.h"
#include "tests/unit/worker/compute/generated_model.h"

namespace cairn::worker {
namespace {

using device::fake::FakeDevices;
using device::fake::FakeOptions;
using kernels::SliceForm;
using kernels::batch::SliceTable;
using testing::CodecCase;
using testing::kCodecCases;

constexpr KvLayout kKv = testing::kSliceKv;

SliceForm FormOf(const CodecCase& c, const KvLayout& kv) {
  return testing::FormOf(c, kv, kv.kv_heads);
}

// A layer of a page as the CPU's codec stores it.
std::vector<std::byte> EncodedOnCpu(const CodecCase& c, const KvLayout& kv, int layer,
                                    int64_t first_position, const std::byte* numbers) {
  const auto codec = codecs::MakeCodec(c.codec, c.values);
  const auto* const halves = reinterpret_cast<const uint16_t*>(numbers);
  const codecs::Plane k{halves, kv.kv_heads, kv.head_dim, int64_t{kv.block_tokens} * kv.head_dim,
                        kv.head_dim};
  codecs::Plane v = k;
  v.data += kv.plane_bytes() / 2;
  const codecs::SlicePlace place{layer, first_position};
  std::vector<std::byte> scratch(codec->ScratchBytes(codecs::ShapeOf(k, v, kv.block_tokens)));
  std::vector<std::byte> bytes(
      codec->MaxEncodedBytes(codecs::ShapeOf(k, v, kv.block_tokens), place));
  bytes.resize(codec->Encode(k, v, kv.block_tokens, place, bytes, scratch).bytes);
  return bytes;
}

struct Taken {
  std::vector<std::byte> bytes;
  std::vector<uint64_t> lengths, hashes;
};
using TakenByPage = std::map<size_t, Taken>;

PageEncoder::Take Into(TakenByPage* taken) {
  return [taken](size_t page, const PageEncoder::Encoded& e) {
    (*taken)[page] = {{e.bytes.begin(), e.bytes.end()},
                      {e.lengths.begin(), e.lengths.end()},
                      {e.hashes.begin(), e.hashes.end()}};
  };
}

class DevicePageEncoderTest : public testing::SliceFixture {
 protected:
  void Start(uint64_t seed, int64_t slots = 16) {
    encoder_.reset();
    StartDevice(seed, slots);
    encoder_ = *DevicePageEncoder::Create(device_, kKv, *kernels_, *mirror_);
  }
  // The bytes that a pass left in the slot of `stamp`.
  std::vector<std::byte> Compute(uint64_t stamp) {
    std::vector<std::byte> page(kKv.page_bytes());
    for (size_t i = 0; i < page.size(); i += 2) {
      const uint16_t half = RandomHalf();
      std::memcpy(page.data() + i, &half, sizeof(half));
    }
    mirror_->BeginPass();
    KvMirror::Slot* const slot = *mirror_->Hold(stamp);
    for (int layer = 0; layer < kKv.layers; ++layer) {
      (void)mirror_->TakeMissing({&slot, 1}, layer);
    }
    std::memcpy(reinterpret_cast<void*>(slot->address), page.data(), page.size());
    mirror_->EndPass(/*failed=*/false);
    return page;
  }
  TakenByPage Encode(const CodecCase& c, const std::vector<PageEncoder::Page>& pages) {
    TakenByPage taken;
    encoder_->Encode(FormOf(c, kKv), pages, Into(&taken));
    return taken;
  }
  static void ExpectAsOnCpu(const CodecCase& c, const Taken& taken, int64_t first_position,
                            const std::vector<std::byte>& page) {
    std::vector<std::byte> all;
    for (int layer = 0; layer < kKv.layers; ++layer) {
      const auto slice = EncodedOnCpu(c, kKv, layer, first_position,
                                      page.data() + kKv.layer_bytes() * static_cast<size_t>(layer));
      EXPECT_EQ(taken.lengths[static_cast<size_t>(layer)], slice.size());
      EXPECT_EQ(taken.hashes[static_cast<size_t>(layer)], Xxh3(slice));
      all.insert(all.end(), slice.begin(), slice.end());
    }
    EXPECT_EQ(taken.bytes, all);
  }

  std::unique_ptr<DevicePageEncoder> encoder_;
};

TEST_F(DevicePageEncoderTest, GivesTheBytesAndHashesOfTheCpu) {
  for (const CodecCase& c : kCodecCases) {
    SCOPED_TRACE(c.codec);
    Start(/*seed=*/c.codec.size());
    const auto first = Compute(11), second = Compute(12);
    const TakenByPage taken = Encode(c, {{11, 0}, {12, 64}});
    ASSERT_EQ(taken.size(), 2u);
    ExpectAsOnCpu(c, taken.at(0), 0, first);
    ExpectAsOnCpu(c, taken.at(1), 64, second);
  }
}

TEST_F(DevicePageEncoderTest, PagesThatAreNotThereAreLeftOut) {
  Start(1);
  const CodecCase c{"fp8", {0}};
  const auto page = Compute(7);
  const TakenByPage taken = Encode(c, {{0, 0}, {7, 64}, {8, 128}});
  ASSERT_EQ(taken.size(), 1u);
  ExpectAsOnCpu(c, taken.at(1), 64, page);
}

TEST_F(DevicePageEncoderTest, NumbersThatAreNotFiniteAreLeftToTheCpuWhichNamesThem) {
  for (const CodecCase& c : {kCodecCases[1], kCodecCases[6]}) {
    SCOPED_TRACE(c.codec);
    Start(1);
    Compute(1);
    const auto good = Compute(2);
    mirror_->BeginPass();
    const uint16_t nan = 0x7e00;
    std::memcpy(reinterpret_cast<void*>((*mirror_->Hold(1))->address + 20), &nan, sizeof(nan));
    mirror_->EndPass(/*failed=*/false);
    const TakenByPage taken = Encode(c, {{1, 64}, {2, 128}});
    ASSERT_EQ(taken.size(), 1u);
    ExpectAsOnCpu(c, taken.at(1), 128, good);
  }
}

TEST_F(DevicePageEncoderTest, APageThatAPassIsBringingIsLeftOut) {
  Start(1);
  Compute(1);
  const CodecCase c{"fp8", {0}};
  mirror_->BeginPass();
  KvMirror::Slot* const slot = *mirror_->Hold(2);
  for (int layer = 0; layer < kKv.layers; ++layer) {
    (void)mirror_->TakeMissing({&slot, 1}, layer);
  }
  // All of its layers are on their way, and that is all that is known.
  EXPECT_EQ(Encode(c, {{1, 64}, {2, 64}}).size(), 1u);
  mirror_->EndPass(/*failed=*/true);
  EXPECT_TRUE(Encode(c, {{2, 64}}).empty());
}

TEST_F(DevicePageEncoderTest, NoMoreThanAQuarterOfTheSlotsIsReadAtATime) {
  Start(1, /*slots=*/8);
  for (uint64_t stamp = 1; stamp <= 8; ++stamp) Compute(stamp);
  EXPECT_EQ(Encode({"fp8", {0}}, {{1, 0}, {2, 64}, {3, 128}}).size(), 2u);
  Start(1, /*slots=*/3);
  Compute(1);
  EXPECT_TRUE(Encode({"fp8", {0}}, {{1, 0}}).empty());
}

TEST_F(DevicePageEncoderTest, WhoComesWhileItIsBusyIsToldAtOnce) {
  Start(1);
  Compute(1);
  TakenByPage second;
  size_t first = 0;
  const SliceForm form = FormOf({"fp8", {0}}, kKv);
  const std::vector<PageEncoder::Page> pages = {{1, 64}};
  encoder_->Encode(form, pages, [&](size_t, const PageEncoder::Encoded&) {
    ++first;
    encoder_->Encode(form, pages, Into(&second));
  });
  EXPECT_EQ(first, 1u);
  EXPECT_TRUE(second.empty());
}

TEST_F(DevicePageEncoderTest, WhatFailsIsLeftToTheCpu) {
  const CodecCase c{"turbo", {4, 4, 1}};
  for (const char* const operation : {"issue", "copy"}) {
    SCOPED_TRACE(operation);
    Start(1);
    Compute(1);
    fake_->control().fail(operation, 0, 1, device::Code::kOther);
    EXPECT_TRUE(Encode(c, {{1, 64}}).empty());
    EXPECT_EQ(Encode(c, {{1, 64}}).size(), 1u);
  }
  // Without memory, and after work of which nobody knows whether it has ended, it is not tried
  // again.
  for (const auto& [operation, code] :
       {std::pair{"allocate", device::Code::kOutOfMemory}, {"work", device::Code::kOther}}) {
    SCOPED_TRACE(operation);
    Start(1);
    Compute(1);
    fake_->control().fail(operation, 0, 1, code);
    EXPECT_TRUE(Encode(c, {{1, 64}}).empty());
    EXPECT_TRUE(Encode(c, {{1, 64}}).empty());
  }
  Start(1);
  Compute(1);
  fake_->control().lose(0);
  EXPECT_TRUE(Encode(c, {{1, 64}}).empty());
}

// ---- Beside a transformer ----

std::atomic<bool> g_may_encode = false;
const SliceTable* g_slices = nullptr;
const device::fake::FakeControl* g_control = nullptr;

// Encoding that does not begin before the test says so.
int EncodeLater(void* stream, const kernels::SlicesArgs& args) {
  g_control->issue_when(
      stream, "the test's delay", nullptr, 0, nullptr, 0, [](void*) { return g_may_encode.load(); },
      [](void*) {}, [](void*) {}, nullptr);
  return g_slices->encode_slices(stream, args);
}

TEST(DevicePageEncoderBesidePassesTest, NoPassWaitsForAnEncoding) {
  for (const uint64_t seed : {1, 2, 3}) {
    FakeDevices fake(FakeOptions{.seed = seed});
    kernels::testing::AddForwardKernels(fake.control());
    kernels::testing::AddSliceKernels(fake.control());
    const auto device = fake.Open();
    const char* const name = kernels::batch::kSliceTableName;
    g_slices =
        static_cast<const SliceTable*>(*device->Kernels(name, kernels::batch::kSliceTableVersion));
    g_control = &fake.control();
    static SliceTable slow;
    slow = *g_slices;
    slow.encode_slices = EncodeLater;
    fake.control().add_kernels(name, kernels::batch::kSliceTableVersion, &slow);

    g_may_encode = false;
    const testing::GeneratedModel model(testing::kOthers);
    Transformer::Options options;
    options.threads = 1;
    options.block_tokens = 16;
    options.device = device;
    options.device_kv_bytes = 1 << 20;
    testing::Runner r(*model, options);
    ASSERT_OK(r.Run(testing::Tokens(48), Phase::kPrefill));
    const KvLayout kv = r.transformer->kv_layout();
    const CodecCase c{"turbo", {4, 4, 1}};
    const SliceForm form = FormOf(c, kv);
    const std::vector<PageEncoder::Page> pages = {{r.sequence.PageStamp(0), 0},
                                                  {r.sequence.PageStamp(1), 16}};
    TakenByPage taken;
    std::thread push([&] { r.transformer->page_encoder()->Encode(form, pages, Into(&taken)); });
    // Prompts and steps end, noted ones too, while the encoding has not begun.
    ASSERT_OK(r.Run(testing::Tokens(16), Phase::kPrefill));
    for (int step = 0; step < 4; ++step) {
      ASSERT_OK(r.Run(std::vector<int32_t>{5}, Phase::kDecode));
    }
    EXPECT_GT(r.transformer->graph_stats().launches, 0u);
    g_may_encode = true;
    push.join();
    ASSERT_EQ(taken.size(), 2u);
    for (size_t page = 0; page < 2; ++page) {
      std::vector<std::byte> all;
      for (int layer = 0; layer < kv.layers; ++layer) {
        const auto slice = EncodedOnCpu(
            c, kv, layer, pages[page].first_position,
            std::as_const(r.sequence).LayerSlice(static_cast<int64_t>(page), layer).data());
        all.insert(all.end(), slice.begin(), slice.end());
      }
      EXPECT_EQ(taken.at(page).bytes, all);
    }
  }
}

}  // namespace
}  // namespace cairn::worker
