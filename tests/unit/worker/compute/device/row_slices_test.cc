// Rows that a selection kept, decoded on a device: over a fake device whose kernels are the real
// ones' emulation. The CPU's decoder says what they are.

#include <gtest/gtest.h>

#include <cstring>

#include "cairn/common/hash.h"
#include "common/status/matchers.h"
#include "kernels/codecs/registry.h"
#include "services/worker/compute/device/slice_decoder.h"
#include "tests/unit/worker/compute/device/slice_fixture.h"

namespace cairn::worker {
namespace {

using testing::CodecCase;
using Outcome = SliceLoader::Outcome;

constexpr KvLayout kKv = testing::kSliceKv;

// All store the sequence's first token in full.
const CodecCase kCases[] = {{"int8", {64, 1}}, {"int4", {64, 1}},     {"turbo", {4, 2, 1}},
                            {"fp8", {1}},      {"mixed", {64, 2, 1}}, {"cachegen", {10, 10, 1}}};

class RowSlicesTest : public testing::SliceFixture {
 protected:
  // A slice as it is stored: bytes of no interest where masks and lengths are, and encoded heads.
  struct Encoded {
    std::vector<std::byte> bytes = std::vector<std::byte>(21, std::byte{0x5a});
    SliceLoader::RowsSlice slice;
    std::vector<uint16_t> decoded;
  };
  struct Taken {
    std::vector<Outcome> outcomes;
    std::vector<std::vector<uint16_t>> rows;
  };

  void Start(uint64_t seed) {
    decoder_.reset();
    StartDevice(seed, /*slots=*/2);
    decoder_ = *SliceDecoder::Create(device_, kKv, *kernels_, *mirror_);
  }

  // One slice a layer, of heads with `rows` rows; the first head of the first one begins the
  // sequence.
  std::vector<Encoded> Encode(const CodecCase& c, const std::vector<std::vector<int32_t>>& rows) {
    const auto codec = codecs::MakeCodec(c.codec, c.values);
    form_ = testing::FormOf(c, kKv, /*heads=*/1);
    std::vector<Encoded> all;
    for (const std::vector<int32_t>& heads : rows) {
      Encoded& e = all.emplace_back();
      e.slice.layer = static_cast<int32_t>(all.size()) - 1;
      for (const int32_t count : heads) {
        const bool start = all.size() == 1 && e.slice.heads.empty();
        AddHead(*codec, count, start, &e);
      }
      e.slice.bytes = e.bytes.size();
      e.slice.xxh3 = Xxh3(e.bytes);
    }
    for (Encoded& e : all) e.slice.host = e.bytes.data();
    return all;
  }

  Taken Load(const std::vector<Encoded>& all) {
    std::vector<SliceLoader::RowsSlice> slices;
    for (const Encoded& e : all) slices.push_back(e.slice);
    Taken taken;
    decoder_->LoadRows(form_, slices,
                       [&](size_t i, Outcome outcome, std::span<const uint16_t> rows) {
                         EXPECT_EQ(i, taken.outcomes.size());
                         taken.outcomes.push_back(outcome);
                         taken.rows.emplace_back(rows.begin(), rows.end());
                       });
    return taken;
  }

  kernels::SliceForm form_;
  std::unique_ptr<SliceDecoder> decoder_;

 private:
  void AddHead(const codecs::Codec& codec, int32_t rows, bool sequence_start, Encoded* to) {
    const auto plane = static_cast<size_t>(rows) * static_cast<size_t>(kKv.head_dim);
    std::vector<uint16_t> numbers(2 * plane);
    for (uint16_t& n : numbers) n = RandomHalf();
    const int64_t stride = static_cast<int64_t>(plane);
    const codecs::Plane k{numbers.data(), 1, kKv.head_dim, stride, kKv.head_dim};
    codecs::Plane v = k;
    v.data += plane;
    const codecs::SlicePlace place{to->slice.layer, sequence_start ? 0 : kKv.block_tokens};
    const codecs::SliceShape shape = codecs::ShapeOf(k, v, rows);
    std::vector<std::byte> scratch(codec.ScratchBytes(shape));
    std::vector<std::byte> bytes(codec.MaxEncodedBytes(shape, place));
    bytes.resize(codec.Encode(k, v, rows, place, bytes, scratch).bytes);
    to->slice.heads.push_back({.offset = to->bytes.size(),
                               .bytes = bytes.size(),
                               .rows = rows,
                               .sequence_start = sequence_start});
    to->bytes.insert(to->bytes.end(), bytes.begin(), bytes.end());
    const size_t begin = to->decoded.size();
    to->decoded.resize(begin + 2 * plane);
    uint16_t* const out = to->decoded.data() + begin;
    const codecs::MutablePlane to_k{out, 1, kKv.head_dim, stride, kKv.head_dim};
    codecs::MutablePlane to_v = to_k;
    to_v.data += plane;
    CAIRN_CHECK(codec.Decode(bytes, to_k, to_v, rows, place, scratch) == codecs::CodecStatus::kOk);
  }
};

TEST_F(RowSlicesTest, AreWhatTheCpuDecodesWhateverHeadsKeep) {
  for (const CodecCase& c : kCases) {
    SCOPED_TRACE(c.codec);
    Start(/*seed=*/c.codec.size());
    const std::vector<Encoded> all = Encode(c, {{1, 64}, {}, {33, 7}, {2}});
    const Taken taken = Load(all);
    EXPECT_EQ(taken.outcomes, std::vector<Outcome>(4, Outcome::kGood));
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(taken.rows[i], all[i].decoded) << i;
  }
}

TEST_F(RowSlicesTest, ABitFlipAnywhereInASliceIsFoundAndTouchesNoOther) {
  for (const CodecCase& c : {kCases[2], kCases[5]}) {
    SCOPED_TRACE(c.codec);
    Start(1);
    const std::vector<Encoded> good = Encode(c, {{9, 20}, {9, 20}});
    // In the masks, in the first head, in the last byte of the last one.
    for (const size_t byte : {size_t{3}, size_t{25}, good[0].bytes.size() - 1}) {
      std::vector<Encoded> all = good;
      all[0].bytes[byte] ^= std::byte{0x04};
      for (Encoded& e : all) e.slice.host = e.bytes.data();
      const Taken taken = Load(all);
      EXPECT_EQ(taken.outcomes, (std::vector<Outcome>{Outcome::kWrong, Outcome::kGood})) << byte;
      EXPECT_TRUE(taken.rows[0].empty());
      EXPECT_EQ(taken.rows[1], all[1].decoded);
    }
  }
}

TEST_F(RowSlicesTest, RowsThatNoEncoderWritesAreWrongUnderARightHash) {
  Start(1);
  std::vector<Encoded> all = Encode({"int8", {64, 0}}, {{4}, {4}});
  // A scale of the first head: a negative one.
  all[0].bytes[all[0].slice.heads[0].offset + 1] |= std::byte{0x80};
  all[0].slice.xxh3 = Xxh3(all[0].bytes);
  EXPECT_EQ(Load(all).outcomes, (std::vector<Outcome>{Outcome::kWrong, Outcome::kGood}));
}

TEST_F(RowSlicesTest, MoreThanFitsIntoABatchComesInOrder) {
  Start(3);
  // The emulation needs some milliseconds for a slice: small ones, but more than a batch has words
  // for.
  const std::vector<Encoded> all =
      Encode({"fp8", {0}}, std::vector<std::vector<int32_t>>(600, std::vector<int32_t>{1}));
  const Taken taken = Load(all);
  EXPECT_EQ(taken.outcomes, std::vector<Outcome>(600, Outcome::kGood));
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(taken.rows[i], all[i].decoded) << i;
}

TEST_F(RowSlicesTest, WhatTheDeviceDoesNotDoIsUnread) {
  Start(1);
  const std::vector<Encoded> all = Encode({"fp8", {0}}, {{5, 6}, {7}});
  fake_->control().fail("allocate", 0, 1, device::Code::kOutOfMemory);
  EXPECT_EQ(Load(all).outcomes, std::vector<Outcome>(2, Outcome::kUnread));
  fake_->control().fail("issue", 1, 1, device::Code::kOther);
  EXPECT_EQ(Load(all).outcomes, std::vector<Outcome>(2, Outcome::kUnread));
  EXPECT_EQ(Load(all).outcomes, std::vector<Outcome>(2, Outcome::kGood));
  fake_->control().lose(0);
  EXPECT_EQ(Load(all).outcomes, std::vector<Outcome>(2, Outcome::kUnread));
}

}  // namespace
}  // namespace cairn::worker
