// The transformer on a device, over a fake device whose kernels are the real ones' emulation. The
// device does its work late and in an order of its own, so a missing wait gives other numbers, and
// it reports accesses that no wait orders (FakeDevices' destructor).

#include <gtest/gtest.h>

#include <cstring>

#include "common/status/matchers.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/support/fake_kernels/forward_kernels.h"
#include "tests/unit/worker/compute/generated_model.h"

namespace cairn::worker {
namespace {

using device::fake::FakeDevices;
using device::fake::FakeOptions;
using testing::Distance;
using testing::GeneratedModel;
using testing::kLayers;
using testing::kOthers;
using testing::kVocab;
using testing::PlainLlama;
using testing::Runner;
using testing::Tokens;

constexpr double kBound = 3e-2;  // As the CPU's bfloat16 arithmetic.
constexpr int32_t kBlock = 16;

class DeviceTransformerTest : public ::testing::Test {
 protected:
  void Start(uint64_t seed, uint64_t memory_bytes = 256 << 20) {
    fake_.reset();
    fake_ = std::make_unique<FakeDevices>(FakeOptions{.seed = seed, .memory_bytes = memory_bytes});
    kernels::testing::AddForwardKernels(fake_->control());
  }
  Transformer::Options Options(int64_t pages = 64) {
    Transformer::Options options;
    options.threads = 1;
    options.block_tokens = kBlock;
    options.device = fake_->Open();
    options.device_kv_bytes = pages * kPageBytes;
    return options;
  }
  static std::vector<std::byte> PageBytes(const KvSequence& sequence, int64_t tokens) {
    std::vector<std::byte> bytes;
    for (int64_t page = 0; page < tokens / kBlock; ++page) {
      for (int layer = 0; layer < kLayers; ++layer) {
        const auto slice = sequence.LayerSlice(page, layer);
        bytes.insert(bytes.end(), slice.begin(), slice.end());
      }
    }
    return bytes;
  }

  // K and V of 2 layers, 2 heads, 16 tokens of 64 channels.
  static constexpr int64_t kPageBytes = 2 * 2 * 2 * 16 * 64 * 2;

  const GeneratedModel model_{kOthers};
  std::unique_ptr<FakeDevices> fake_;
};

TEST_F(DeviceTransformerTest, AgreesWithPlainLlamaWhateverTheOrderOfTheWork) {
  PlainLlama plain(*model_);
  const std::vector<int32_t> tokens = Tokens(40);
  std::vector<float> want;
  for (const int32_t token : tokens) want = plain.Step(token);
  const std::vector<float> want_next = plain.Step(5);
  std::vector<float> first;
  for (const uint64_t seed : {1, 2, 3}) {
    Start(seed);
    Runner r(*model_, Options());
    ASSERT_OK(r.Run(tokens, Phase::kPrefill));
    EXPECT_LE(Distance(want, r.logits), kBound);
    ASSERT_OK(r.Run(std::vector<int32_t>{5}, Phase::kDecode));
    EXPECT_LE(Distance(want_next, r.logits), kBound);
    if (first.empty()) first = r.logits;
    EXPECT_EQ(r.logits, first) << seed;
    EXPECT_EQ(r.transformer->numerics_id().substr(0, 14), "cuda-emulated-");
  }
}

TEST_F(DeviceTransformerTest, APromptMayBeCutAtAnyBlockAndRunBesideOthers) {
  Start(1);
  const std::vector<int32_t> tokens = Tokens(75);
  Runner whole(*model_, Options());
  ASSERT_OK(whole.Run(tokens, Phase::kPrefill));
  ASSERT_OK(whole.Run(std::vector<int32_t>{7}, Phase::kDecode));
  // In three pieces, the second of them together with another prompt, the decode together with
  // another sequence.
  Runner cut(*model_, Options());
  const std::span<const int32_t> all(tokens);
  ASSERT_OK(cut.Run(all.first(16), Phase::kPrefill));
  KvSequence other = cut.pool->NewSequence();
  ASSERT_OK(other.Reserve(64));
  std::vector<float> other_logits(kVocab);
  const auto together = [&](std::span<const int32_t> mine, Phase phase,
                            std::span<const int32_t> others, Phase others_phase) {
    EXPECT_OK(cut.sequence.Reserve(cut.sequence.length() + std::ssize(mine)));
    SequenceChunk chunks[2];
    chunks[0] = {
        .sequence = &other, .tokens = others, .phase = others_phase, .logits = other_logits.data()};
    chunks[1] = {
        .sequence = &cut.sequence, .tokens = mine, .phase = phase, .logits = cut.logits.data()};
    return cut.transformer->Forward(chunks);
  };
  const std::vector<int32_t> others = Tokens(20), next = {9}, seven = {7};
  ASSERT_OK(together(all.subspan(16, 32), Phase::kPrefill, others, Phase::kPrefill));
  ASSERT_OK(together(all.subspan(48), Phase::kPrefill, next, Phase::kDecode));
  ASSERT_OK(together(seven, Phase::kDecode, next, Phase::kDecode));
  EXPECT_EQ(cut.logits, whole.logits);
  EXPECT_EQ(PageBytes(cut.sequence, 75), PageBytes(whole.sequence, 75));
}

// Blocks that a fetch brings are in the host's pages, layer by layer, when before_layer returns.
TEST_F(DeviceTransformerTest, GoesOnFromKvThatWasFetched) {
  for (const uint64_t seed : {1, 2}) {
    Start(seed);
    const std::vector<int32_t> tokens = Tokens(50);
    const std::span<const int32_t> all(tokens);
    Runner made(*model_, Options());
    ASSERT_OK(made.Run(all.first(32), Phase::kPrefill));
    Runner warm(*model_, Options());
    ASSERT_OK(warm.sequence.Reserve(64));
    warm.sequence.SetLength(32);
    SequenceChunk chunk{.sequence = &warm.sequence,
                        .tokens = all.subspan(32),
                        .phase = Phase::kPrefill,
                        .logits = warm.logits.data()};
    chunk.before_layer = [&](int layer) {
      for (int64_t page = 0; page < 2; ++page) {
        const auto from = made.sequence.LayerSlice(page, layer);
        std::memcpy(warm.sequence.LayerSlice(page, layer).data(), from.data(), from.size());
      }
      return OkStatus();
    };
    std::vector<int> stored;
    chunk.after_layer = [&](int layer) { stored.push_back(layer); };
    ASSERT_OK(warm.transformer->Forward(std::span(&chunk, 1)));
    EXPECT_EQ(stored, (std::vector<int>{0, 1}));
    ASSERT_OK(made.Run(all.subspan(32), Phase::kPrefill));
    EXPECT_EQ(warm.logits, made.logits);
    ASSERT_OK(made.Run(std::vector<int32_t>{3}, Phase::kDecode));
    ASSERT_OK(warm.Run(std::vector<int32_t>{3}, Phase::kDecode));
    EXPECT_EQ(warm.logits, made.logits);
  }
}

// A request that was parked comes back with a page that is half full.
TEST_F(DeviceTransformerTest, DecodesIntoAPageThatCameFromTheHost) {
  Start(2);
  Runner made(*model_, Options());
  ASSERT_OK(made.Run(Tokens(41), Phase::kPrefill));
  KvSequence again = made.pool->NewSequence();
  ASSERT_OK(again.Reserve(64));
  for (int64_t page = 0; page < 3; ++page) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto from = made.sequence.LayerSlice(page, layer);
      std::memcpy(again.LayerSlice(page, layer).data(), from.data(), from.size());
    }
  }
  again.SetLength(41);
  ASSERT_OK(made.Run(std::vector<int32_t>{4}, Phase::kDecode));
  const std::vector<int32_t> token = {4};
  std::vector<float> logits(kVocab);
  const SequenceChunk chunk{
      .sequence = &again, .tokens = token, .phase = Phase::kDecode, .logits = logits.data()};
  ASSERT_OK(made.transformer->Forward(std::span(&chunk, 1)));
  EXPECT_EQ(logits, made.logits);
}

TEST_F(DeviceTransformerTest, PagesLeaveTheDeviceAndComeBack) {
  Start(1);
  Runner roomy(*model_, Options(64));
  ASSERT_OK(roomy.Run(Tokens(60), Phase::kPrefill));
  ASSERT_OK(roomy.Run(std::vector<int32_t>{1}, Phase::kDecode));
  Runner tight(*model_, Options(/*pages=*/5));
  ASSERT_OK(tight.Run(Tokens(60), Phase::kPrefill));
  KvSequence other = tight.pool->NewSequence();
  ASSERT_OK(other.Reserve(100));
  const std::vector<int32_t> tokens = Tokens(80), too_many = Tokens(96);
  SequenceChunk chunk{.sequence = &other, .tokens = tokens, .phase = Phase::kPrefill};
  ASSERT_OK(tight.transformer->Forward(std::span(&chunk, 1)));
  ASSERT_OK(tight.Run(std::vector<int32_t>{1}, Phase::kDecode));
  EXPECT_EQ(tight.logits, roomy.logits);
  // More than it has at once is refused, and harms nobody.
  KvSequence large = tight.pool->NewSequence();
  ASSERT_OK(large.Reserve(100));
  chunk.sequence = &large;
  chunk.tokens = too_many;
  const Status refused = tight.transformer->Forward(std::span(&chunk, 1));
  EXPECT_THAT(refused,
              cairn::testing::StatusIs(StatusCode::kResourceExhausted,
                                       ::testing::HasSubstr("needs more than its 5 pages")));
  EXPECT_EQ(large.length(), 0);
  ASSERT_OK(roomy.Run(std::vector<int32_t>{2}, Phase::kDecode));
  ASSERT_OK(tight.Run(std::vector<int32_t>{2}, Phase::kDecode));
  EXPECT_EQ(tight.logits, roomy.logits);
}

// The rows that a selection kept, of different number for each head.
TEST_F(DeviceTransformerTest, AttendsToASelectedPrefix) {
  Start(3);
  const auto rows_of = [](int layer, int head) {
    std::vector<int32_t> rows;
    for (int32_t row = 0; row < 64; row += 1 + layer + head) rows.push_back(row);
    return rows;
  };
  const auto run = [&](Runner& r) {
    EXPECT_OK(r.Run(Tokens(64), Phase::kPrefill));
    r.sequence.Compact(rows_of);
    EXPECT_OK(r.Run(Tokens(20), Phase::kPrefill));
    EXPECT_OK(r.Run(std::vector<int32_t>{6}, Phase::kDecode));
  };
  Runner cpu(*model_, {.threads = 1, .block_tokens = kBlock});
  Runner on_device(*model_, Options());
  run(cpu);
  run(on_device);
  EXPECT_LE(Distance(cpu.logits, on_device.logits), kBound);
}

TEST_F(DeviceTransformerTest, ShowsTheQueriesOfAChunk) {
  Start(1);
  const auto observed = [&](Runner& r) {
    std::vector<float> all;
    EXPECT_OK(r.sequence.Reserve(32));
    const std::vector<int32_t> tokens = Tokens(20);
    SequenceChunk chunk{.sequence = &r.sequence, .tokens = tokens, .phase = Phase::kPrefill};
    chunk.observe = [&](const ChunkQueries& q) {
      for (int64_t i = 0; i < q.rows; ++i) {
        all.insert(all.end(), q.q + i * q.stride, q.q + i * q.stride + 256);
      }
    };
    EXPECT_OK(r.transformer->Forward(std::span(&chunk, 1)));
    return all;
  };
  Runner cpu(*model_, {.threads = 1, .block_tokens = kBlock});
  Runner on_device(*model_, Options());
  const std::vector<float> want = observed(cpu), got = observed(on_device);
  ASSERT_EQ(got.size(), size_t{20 * 256 * kLayers});
  EXPECT_LE(Distance(want, got), kBound);
}

TEST_F(DeviceTransformerTest, ADeviceThatIsLostInAnyOperationEndsThePassWithAnError) {
  for (const char* const operation : {"copy", "record", "wait", "query", "work"}) {
    for (const uint64_t after : {0, 7}) {
      Start(1);
      Runner r(*model_, Options());
      fake_->control().fail(operation, after, 1, device::Code::kLost);
      const Status status = r.Run(Tokens(20), Phase::kPrefill);
      if (status.ok()) continue;  // The pass has fewer of them.
      EXPECT_EQ(status.code(), StatusCode::kUnavailable) << operation << ": " << status;
      EXPECT_EQ(r.sequence.length(), 0);
      // It stays lost, and says so at once.
      EXPECT_EQ(r.Run(Tokens(20), Phase::kPrefill).code(), StatusCode::kUnavailable);
    }
  }
}

TEST_F(DeviceTransformerTest, TooLittleMemoryIsNamedWithWhatItIsFor) {
  for (const auto& [bytes, what] :
       {std::pair<uint64_t, const char*>{1 << 20, "weights"}, {14 << 20, "KV pool"}}) {
    Start(1, bytes);
    const auto made = Transformer::Create(*model_, Options(/*pages=*/1000));
    ASSERT_EQ(made.status().code(), StatusCode::kResourceExhausted) << made.status();
    EXPECT_THAT(Message(made.status()), ::testing::HasSubstr(what));
    EXPECT_THAT(Message(made.status()), ::testing::HasSubstr("bytes wanted"));
  }
}

TEST_F(DeviceTransformerTest, KernelsThatTheLibraryLacksAreAnError) {
  fake_ = std::make_unique<FakeDevices>(FakeOptions{});
  const auto made = Transformer::Create(*model_, Options());
  EXPECT_EQ(made.status().code(), StatusCode::kNotFound) << made.status();
}

}  // namespace
}  // namespace cairn::worker
