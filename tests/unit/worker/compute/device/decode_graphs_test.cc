// Decode steps that are noted once and launched again, over a fake device whose kernels are the
// real ones' emulation. The device reports accesses that no wait orders at each launch.
#include "services/worker/compute/device/decode_graphs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "common/status/matchers.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/support/fake_kernels/forward_kernels.h"
#include "tests/support/fake_kernels/slice_kernels.h"
#include "tests/unit/worker/compute/generated_model.h"

namespace cairn::worker {
namespace {

using device::fake::FakeDevices;
using device::fake::FakeOptions;
using testing::GeneratedModel;
using testing::kOthers;
using testing::Runner;
using testing::Tokens;

constexpr int32_t kBlock = 16;
// K and V of 2 layers, 2 heads, 16 tokens of 64 channels.
constexpr int64_t kPageBytes = 2 * 2 * 2 * 16 * 64 * 2;

class DecodeGraphsTest : public ::testing::Test {
 protected:
  void Start(uint64_t seed) {
    fake_.reset();
    fake_ = std::make_unique<FakeDevices>(FakeOptions{.seed = seed});
    kernels::testing::AddForwardKernels(fake_->control());
  }
  Transformer::Options Options(bool graphs, int64_t pages = 64) {
    Transformer::Options options;
    options.threads = 1;
    options.block_tokens = kBlock;
    options.device = fake_->Open();
    options.device_kv_bytes = pages * kPageBytes;
    options.device_graphs = graphs;
    return options;
  }
  // The logits of each of `steps` decode steps behind a prompt.
  static std::vector<std::vector<float>> Decoded(Runner& r, int prompt, int steps) {
    EXPECT_OK(r.Run(Tokens(prompt), Phase::kPrefill));
    std::vector<std::vector<float>> all;
    for (int32_t step = 0; step < steps; ++step) {
      EXPECT_OK(r.Run(std::vector<int32_t>{step % 7 + 1}, Phase::kDecode));
      all.push_back(r.logits);
    }
    return all;
  }
  static std::vector<std::byte> PageBytes(const KvSequence& sequence) {
    std::vector<std::byte> bytes;
    for (int64_t page = 0; page < sequence.length() / kBlock; ++page) {
      const auto slice = sequence.LayerSlice(page, 0);
      bytes.insert(bytes.end(), slice.data(), slice.data() + kPageBytes);
    }
    return bytes;
  }
  static Status DecodeTogether(Runner& r, KvSequence& other, std::vector<float>& other_logits) {
    CAIRN_RETURN_IF_ERROR(r.sequence.Reserve(r.sequence.length() + 1));
    CAIRN_RETURN_IF_ERROR(other.Reserve(other.length() + 1));
    const std::vector<int32_t> one = {1}, two = {2};
    SequenceChunk chunks[2];
    chunks[0] = {
        .sequence = &r.sequence, .tokens = one, .phase = Phase::kDecode, .logits = r.logits.data()};
    chunks[1] = {
        .sequence = &other, .tokens = two, .phase = Phase::kDecode, .logits = other_logits.data()};
    return r.transformer->Forward(chunks);
  }

  const GeneratedModel model_{kOthers};
  std::unique_ptr<FakeDevices> fake_;
};

TEST_F(DecodeGraphsTest, GiveTheSameLogitsAndPagesWhateverTheOrderOfTheWork) {
  constexpr int kSteps = 6;
  for (const uint64_t seed : {1, 2}) {
    Start(seed);
    Runner launched(*model_, Options(/*graphs=*/false));
    const auto want = Decoded(launched, 41, kSteps);
    EXPECT_EQ(fake_->stats().graph_launches, 0u);
    Runner noted(*model_, Options(/*graphs=*/true));
    EXPECT_EQ(Decoded(noted, 41, kSteps), want);
    EXPECT_EQ(PageBytes(noted.sequence), PageBytes(launched.sequence));
    // The first step was launched as ever, the second one noted.
    const Transformer::GraphStats stats = noted.transformer->graph_stats();
    EXPECT_EQ(stats.noted, 1u);
    EXPECT_EQ(stats.launches, uint64_t{kSteps - 1});
    EXPECT_EQ(stats.failures, 0u);
    EXPECT_EQ(fake_->stats().graph_launches, uint64_t{kSteps - 1});
  }
}

TEST_F(DecodeGraphsTest, EachNumberOfSequencesHasItsOwn) {
  Start(2);
  const auto run = [&](bool graphs) {
    Runner r(*model_, Options(graphs));
    std::vector<std::vector<float>> all = Decoded(r, 20, 3);
    KvSequence other = r.pool->NewSequence();
    std::vector<float> other_logits(r.logits.size());
    for (int step = 0; step < 4; ++step) {
      EXPECT_OK(DecodeTogether(r, other, other_logits));
      all.push_back(r.logits);
      all.push_back(other_logits);
    }
    EXPECT_OK(r.Run(std::vector<int32_t>{3}, Phase::kDecode));
    all.push_back(r.logits);
    if (graphs) {
      EXPECT_EQ(r.transformer->graph_stats().noted, 2u);
      EXPECT_EQ(r.transformer->graph_stats().launches, 2u + 3u + 1u);
    }
    return all;
  };
  EXPECT_EQ(run(true), run(false));
}

// Pages that leave the device come back before the launch, into other slots: those are in the
// lists.
TEST_F(DecodeGraphsTest, PagesMayLeaveBetweenSteps) {
  Start(1);
  const auto run = [&](bool graphs) {
    Runner r(*model_, Options(graphs, /*pages=*/5));
    std::vector<std::vector<float>> all = Decoded(r, 50, 3);
    KvSequence other = r.pool->NewSequence();
    const std::vector<int32_t> tokens = Tokens(40);
    for (int round = 0; round < 2; ++round) {
      EXPECT_OK(other.Reserve(64));
      SequenceChunk chunk{.sequence = &other, .tokens = tokens, .phase = Phase::kPrefill};
      EXPECT_OK(r.transformer->Forward(std::span(&chunk, 1)));
      EXPECT_OK(r.Run(std::vector<int32_t>{4}, Phase::kDecode));
      all.push_back(r.logits);
      other.Clear();
    }
    return all;
  };
  EXPECT_EQ(run(true), run(false));
}

// Where the device has a kernel for it, the rows of a step come back in one copy.
TEST_F(DecodeGraphsTest, RowsThatAreGatheredFillTheSamePages) {
  const auto run = [&](Runner& r, KvSequence& other, uint64_t* copies) {
    (void)Decoded(r, 30, 2);
    std::vector<float> other_logits(r.logits.size());
    const uint64_t before = fake_->stats().copies;
    // Over the end of a page.
    for (int step = 0; step < 4; ++step) EXPECT_OK(DecodeTogether(r, other, other_logits));
    *copies = fake_->stats().copies - before;
    EXPECT_OK(other.Reserve(16));
    std::vector<std::byte> bytes = PageBytes(r.sequence);
    const auto rows = std::as_const(other).LayerSlice(0, 0);
    bytes.insert(bytes.end(), rows.begin(), rows.begin() + 4 * 64 * 2);
    return bytes;
  };
  for (const uint64_t seed : {1, 2}) {
    Start(seed);
    Runner one_by_one(*model_, Options(/*graphs=*/true));
    KvSequence other = one_by_one.pool->NewSequence();
    uint64_t copies = 0, gathered_copies = 0;
    const auto want = run(one_by_one, other, &copies);
    kernels::testing::AddSliceKernels(fake_->control());
    Runner gathered(*model_, Options(/*graphs=*/true));
    KvSequence gathered_other = gathered.pool->NewSequence();
    EXPECT_EQ(run(gathered, gathered_other, &gathered_copies), want);
    // Lists, logits and rows of each step.
    EXPECT_EQ(gathered_copies, 4u * 3u);
    EXPECT_EQ(copies, 4u * (2u + 2 * 2 * 2 * 2));
  }
}

// A driver that leaves waits of streams out, when the test says so.
const device::DriverTable* g_real = nullptr;
bool g_waits = true;
device::Code WaitOrNot(device::StreamHandle* stream, device::EventHandle* event,
                       device::Failure* failure) {
  return g_waits ? g_real->wait(stream, event, failure) : device::Code::kOk;
}

TEST_F(DecodeGraphsTest, AMissingWaitBehindAGraphIsReportedWithBothNames) {
  for (const uint64_t seed : {1, 2}) {
    fake_ = std::make_unique<FakeDevices>(FakeOptions{.seed = seed, .print_reports = false});
    kernels::testing::AddForwardKernels(fake_->control());
    kernels::testing::AddSliceKernels(fake_->control());
    g_real = fake_->table();
    static device::DriverTable table;
    table = *g_real;
    table.wait = WaitOrNot;
    const auto driver = device::Driver::Use(&table);
    ASSERT_OK(driver);
    Transformer::Options options = Options(/*graphs=*/true);
    options.device = *(*driver)->Open(0);
    g_waits = true;
    Runner r(*model_, options);
    (void)Decoded(r, 20, 3);
    EXPECT_EQ(fake_->TakeReports(), "");
    g_waits = false;
    ASSERT_OK(r.Run(std::vector<int32_t>{1}, Phase::kDecode));
    g_waits = true;
    const std::string reports = fake_->TakeReports();
    EXPECT_THAT(reports, ::testing::HasSubstr("'gather_pages'"));
    EXPECT_THAT(reports, ::testing::HasSubstr("'download of computed KV'"));
  }
}

TEST_F(DecodeGraphsTest, AttendToASelectedPrefix) {
  Start(3);
  const auto run = [&](bool graphs) {
    Runner r(*model_, Options(graphs));
    EXPECT_OK(r.Run(Tokens(64), Phase::kPrefill));
    r.sequence.Compact([](int layer, int head) {
      std::vector<int32_t> rows;
      for (int32_t row = 0; row < 64; row += 1 + layer + head) rows.push_back(row);
      return rows;
    });
    return Decoded(r, 7, 4);
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_F(DecodeGraphsTest, ADriverThatCannotNoteThemIsAskedOnce) {
  for (const char* const operation : {"begin_capture", "end_capture"}) {
    SCOPED_TRACE(operation);
    Start(1);
    Runner launched(*model_, Options(/*graphs=*/false));
    const auto want = Decoded(launched, 20, 5);
    Runner noted(*model_, Options(/*graphs=*/true));
    fake_->control().fail(operation, 0, 1, device::Code::kNotSupported);
    EXPECT_EQ(Decoded(noted, 20, 5), want);
    EXPECT_EQ(noted.transformer->graph_stats().failures, 1u);
    EXPECT_EQ(noted.transformer->graph_stats().noted, 0u);
    EXPECT_EQ(fake_->stats().graph_launches, 0u);
  }
}

TEST_F(DecodeGraphsTest, ADeviceThatIsLostEndsTheStepWithAnError) {
  for (const char* const operation : {"begin_capture", "end_capture", "launch_graph"}) {
    SCOPED_TRACE(operation);
    Start(1);
    Runner r(*model_, Options(/*graphs=*/true));
    (void)Decoded(r, 20, 1);
    fake_->control().fail(operation, 0, 1, device::Code::kLost);
    EXPECT_EQ(r.Run(std::vector<int32_t>{1}, Phase::kDecode).code(), StatusCode::kUnavailable);
    EXPECT_EQ(r.sequence.length(), 21);
  }
}

// Steps of a stream whose only kernel adds one to a number.
class GraphCacheTest : public ::testing::Test {
 protected:
  GraphCacheTest()
      : device_(fake_.Open()),
        stream_(*device_->NewStream()),
        done_(*device_->NewEvent()),
        memory_(*device_->Allocate(64 << 10, /*exportable=*/false)) {
    std::memset(reinterpret_cast<void*>(memory_.address()), 0, 8);
  }
  void Step(int64_t rows, uint64_t addresses = 0) {
    const auto launch = [&] {
      ++launches_;
      const device::fake::Range range{memory_.address(), 8};
      const auto code = fake_.control().issue(
          stream_.native(), "add one", &range, 1, &range, 1,
          [](void* at) { ++*static_cast<uint64_t*>(at); }, nullptr,
          reinterpret_cast<void*>(memory_.address()));
      return code == device::Code::kOk ? OkStatus() : Errorf(StatusCode::kInternal, "add one");
    };
    ASSERT_OK(graphs_.Run({.rows = rows}, addresses, &stream_, launch));
    ASSERT_OK(stream_.Record(done_));
    ASSERT_OK(done_.Synchronize());
    EXPECT_EQ(*reinterpret_cast<const uint64_t*>(memory_.address()), ++steps_);
  }

  FakeDevices fake_;
  std::shared_ptr<device::Device> device_;
  device::Stream stream_;
  device::Event done_;
  device::DeviceMemory memory_;
  DecodeGraphs graphs_{/*enabled=*/true};
  uint64_t steps_ = 0;
  uint64_t launches_ = 0;  // As ever, or to be noted.
};

TEST_F(GraphCacheTest, FewAreKeptAndTheOneNotUsedForLongestGoes) {
  constexpr int64_t kMost = DecodeGraphs::kMost;
  for (int64_t rows = 1; rows <= kMost; ++rows) {
    Step(rows);
    Step(rows);
  }
  EXPECT_EQ(graphs_.GetStats().noted, uint64_t{kMost});
  Step(1);  // Used again, so the second one is the oldest.
  Step(kMost + 1);
  // And a stream, an event and memory.
  EXPECT_EQ(fake_.stats().handles, 3u + kMost - 1) << "one graph has made room";
  const uint64_t before = launches_;
  Step(1);
  EXPECT_EQ(launches_, before);
  Step(2);
  Step(2);
  EXPECT_EQ(launches_, before + 2);
}

TEST_F(GraphCacheTest, AddressesThatChangedAreNotedAgain) {
  Step(1, 7);
  Step(1, 7);
  Step(1, 7);
  EXPECT_EQ(launches_, 2u);
  Step(1, 8);
  Step(1, 8);
  EXPECT_EQ(launches_, 4u);
  EXPECT_EQ(graphs_.GetStats().noted, 2u);
  EXPECT_EQ(graphs_.GetStats().launches, 3u);
}

TEST(DecodeGraphsSplitsTest, AreFewNumbers) {
  EXPECT_EQ(DecodeGraphs::SplitsFor(0), 1);
  EXPECT_EQ(DecodeGraphs::SplitsFor(1), 1);
  EXPECT_EQ(DecodeGraphs::SplitsFor(5), 8);
  EXPECT_EQ(DecodeGraphs::SplitsFor(64), 64);
}

}  // namespace
}  // namespace cairn::worker
