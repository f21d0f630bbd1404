// Prefixes that are computed and fetched at once, over a node that is slow, stops, or lends its
// memory.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>

#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

// The fate of slices on their way.
struct Wire {
  std::atomic<double> bytes_per_second{1e12};
  std::atomic<int64_t> stop_after{-1};  // Slices; then nothing comes until the fetch is cancelled.
  std::atomic<bool> lend{false};
  std::atomic<int64_t> slices{0};
  std::atomic<bool> pinned{true};
  // Pinned() answers true this many times, then false.
  std::atomic<int64_t> pinned_answers{-1};
  std::atomic<int64_t> holds{0};
};

class Hold final : public client::LentHold {
 public:
  explicit Hold(Wire& wire, std::vector<std::byte> bytes) : bytes_(std::move(bytes)), wire_(wire) {
    ++wire_.holds;
  }
  ~Hold() override { --wire_.holds; }
  bool Pinned() const override {
    if (gone_) return false;
    if (wire_.pinned_answers < 0 || wire_.pinned_answers-- > 0) return true;
    // From now on the bytes are somebody else's.
    gone_ = true;
    std::fill(bytes_.begin(), bytes_.end(), std::byte{0x3c});
    return false;
  }
  std::span<const std::byte> Slice(uint32_t layer) const {
    return std::span(bytes_).subspan(layer * kLayerBytes, kLayerBytes);
  }

 private:
  mutable std::vector<std::byte> bytes_;
  mutable std::atomic<bool> gone_{false};
  Wire& wire_;
};

// Passes slices on at the pace of the wire.
class PacedSink final : public client::FetchSink {
 public:
  PacedSink(client::FetchSink& sink, Wire& wire, std::stop_token cancel)
      : sink_(sink), wire_(wire), cancel_(std::move(cancel)) {}

  std::span<std::byte> Destination(const client::SliceInfo& slice) override {
    return lending() ? std::span<std::byte>() : sink_.Destination(slice);
  }
  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override {
    const bool stopped = wire_.stop_after >= 0 && wire_.slices >= wire_.stop_after;
    const std::chrono::duration<double> pace(
        stopped ? 60.0 : static_cast<double>(data.size()) / wire_.bytes_per_second);
    std::unique_lock lock(mu_);
    changed_.wait_for(lock, cancel_, pace, [] { return false; });
    if (cancel_.stop_requested()) return Status(StatusCode::kCancelled, "cancelled");
    ++wire_.slices;
    if (!lending()) return sink_.OnSlice(slice, data);
    // A block lies in one piece, as in a node's memory.
    std::vector<std::byte>& block = blocks_[slice.block];
    block.resize(kLayers * kLayerBytes);
    std::memcpy(block.data() + slice.layer * kLayerBytes, data.data(), data.size());
    pieces_.push_back(slice);
    return OkStatus();
  }
  void OnBlockFailed(uint32_t block, client::MissReason reason) override {
    sink_.OnBlockFailed(block, reason);
  }
  // Lent slices, in layer order, when all of the node's memory is put together.
  Status Lend() {
    std::map<uint32_t, std::shared_ptr<const Hold>> holds;
    for (auto& [block, bytes] : blocks_) holds[block] = std::make_shared<Hold>(wire_, bytes);
    for (const client::SliceInfo& slice : pieces_) {
      const auto& hold = holds[slice.block];
      CAIRN_RETURN_IF_ERROR(sink_.OnLentSlice(slice, hold->Slice(slice.layer), hold));
    }
    return OkStatus();
  }

 private:
  bool lending() const { return wire_.lend && sink_.WantsLent(); }

  client::FetchSink& sink_;
  Wire& wire_;
  std::stop_token cancel_;
  std::mutex mu_;
  std::condition_variable_any changed_;
  std::map<uint32_t, std::vector<std::byte>> blocks_;
  std::vector<client::SliceInfo> pieces_;
};

class PacedClient final : public SharedClient {
 public:
  PacedClient(InMemoryCacheClient& node, Wire& wire) : SharedClient(node), wire_(wire) {}
  Status Fetch(const client::Lease& lease, const client::FetchRange& range, client::FetchSink& sink,
               const client::FetchOptions& options) override {
    PacedSink paced(sink, wire_, options.cancel);
    CAIRN_RETURN_IF_ERROR(SharedClient::Fetch(lease, range, paced, options));
    return paced.Lend();
  }

 private:
  Wire& wire_;
};

class BothEndsTest : public EngineFixture {
 protected:
  static WorkerEngine::Options Choosing() {
    WorkerEngine::Options options = Options();
    options.prefix.choose = true;
    // A stall must not be what ends a fetch here.
    options.prefix.stall_deadline = std::chrono::seconds(120);
    options.prefix.max_stall = std::chrono::seconds(120);
    return options;
  }
  std::unique_ptr<WorkerEngine> Paced(const WorkerEngine::Options& options = Choosing()) {
    auto engine = WorkerEngine::Create(options, std::make_unique<PacedClient>(node_, wire_));
    EXPECT_OK(engine);
    return *std::move(engine);
  }

  Wire wire_;
};

TEST_F(BothEndsTest, AnswersAreTheSameHoweverMuchIsComputed) {
  auto worker = Paced();
  const GenerateRequest request = Request(1000);
  const GenerateSummary want = Run(*WorkerWithoutCache(), request);
  const GenerateSummary cold = Run(*worker, request);
  ExpectSameAnswer(cold, want);
  Idle(*worker);
  const double bytes = 15.0 * kLayers * kLayerBytes;
  uint32_t both = 0;
  // From a wire that is no hindrance to one that takes ten times as long as computing.
  for (const double part : {0.01, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 10.0}) {
    wire_.bytes_per_second = bytes / (part * cold.ttft_seconds);
    for (int i = 0; i < 3; ++i) {  // It learns the wire.
      const GenerateSummary got = Run(*worker, request);
      ExpectSameAnswer(got, want);
      EXPECT_EQ(got.computed_tokens, 1000 - got.fetched_tokens);
      both += got.fetched_tokens > 0 && got.chosen_tokens > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(both, 0u);
  EXPECT_EQ(node_.leases(), 0u);
}

TEST_F(BothEndsTest, NodeThatStopsMidWayIsMetByTheFront) {
  auto worker = Paced();
  const GenerateRequest request = Request(1000, 1, 4);
  const GenerateSummary want = Run(*worker, request);
  Idle(*worker);
  wire_.bytes_per_second = 15.0 * kLayers * kLayerBytes / want.ttft_seconds;
  for (const int64_t slices : {0, 1, 7, 22, 30, 45}) {
    wire_.slices = 0;
    wire_.stop_after = slices;
    const GenerateSummary got = Run(*worker, request);
    ExpectSameAnswer(got, want);
    // Not by a deadline: those are two minutes here.
    EXPECT_LT(got.ttft_seconds, 60) << slices;
  }
  EXPECT_EQ(node_.leases(), 0u);
}

TEST_F(BothEndsTest, LentPagesAreReadWithoutACopy) {
  wire_.lend = true;
  auto worker = Paced();
  const GenerateRequest request = Request(700);
  const GenerateSummary want = Run(*worker, request);
  Idle(*worker);
  const GenerateSummary got = Run(*worker, request);
  ExpectSameAnswer(got, want);
  EXPECT_GT(got.fetched_tokens, 0u);
  EXPECT_EQ(got.fetched.lent, got.fetched.total());
  EXPECT_EQ(wire_.holds, 0);
  WorkerEngine::Options copying = Choosing();
  copying.prefix.lend = false;
  copying.prefix.choose = false;
  const GenerateSummary copied = Run(*Paced(copying), request);
  ExpectSameAnswer(copied, want);
  EXPECT_EQ(copied.fetched.lent, 0u);
  EXPECT_EQ(copied.fetched_tokens, 640u);
}

// Whenever the node takes its memory back: while the prompt is computed, or between two tokens.
TEST_F(BothEndsTest, LentMemoryThatIsTakenBackChangesNoAnswer) {
  wire_.lend = true;
  WorkerEngine::Options options = Choosing();
  options.prefix.choose = false;
  auto worker = Paced(options);
  const GenerateRequest request = Request(700, 1, 6);
  const GenerateSummary want = Run(*worker, request);
  Idle(*worker);
  for (const int64_t answers : {0, 1, 5, 10, 11, 25, 40}) {
    wire_.pinned_answers = answers;
    ExpectSameAnswer(Run(*worker, request), want);
    EXPECT_EQ(wire_.holds, 0);
  }
}

TEST_F(BothEndsTest, KeptTurnHoldsNoMemoryOfTheNode) {
  wire_.lend = true;
  auto worker = Paced();
  GenerateRequest request = Request(300, 1, 80);
  Run(*worker, request);
  Idle(*worker);
  request.keep_turn = true;
  const GenerateSummary turn = Run(*worker, request);
  EXPECT_EQ(wire_.holds, 0);
  Idle(*worker);
  auto& ids = std::get<TokenPrompt>(request.prompt).ids;
  ids.insert(ids.end(), turn.tokens.begin(), turn.tokens.end());
  ids.push_back(55);
  const GenerateSummary next = Run(*worker, request);
  EXPECT_GE(next.fetched_tokens + next.chosen_tokens, 320u);
  ExpectSameAnswer(next, Run(*WorkerWithoutCache(), request));
}

TEST_F(BothEndsTest, TimelineTellsWhenLayersCameAndWereComputed) {
  wire_.bytes_per_second = 20e6;
  WorkerEngine::Options options = Choosing();
  options.prefix.choose = false;
  auto worker = Paced(options);
  GenerateRequest request = Request(700);
  request.want_timeline = true;
  const GenerateSummary cold = Run(*worker, request);
  ASSERT_FALSE(cold.timeline.empty());
  Idle(*worker);
  const GenerateSummary warm = Run(*worker, request);
  uint32_t fetched = 0, computed = 0;
  for (const TimelineSpan& span : warm.timeline) {
    EXPECT_GE(span.end, span.begin);
    EXPECT_LE(span.end, warm.ttft_seconds);
    fetched += span.kind == TimelineSpan::Kind::kFetch ? 1 : 0;
    if (span.kind == TimelineSpan::Kind::kCompute) {
      EXPECT_EQ(span.layer, static_cast<int32_t>(computed++));
      EXPECT_EQ(span.block_begin, 10u);
      EXPECT_EQ(span.block_end, 11u);
    }
  }
  EXPECT_EQ(fetched, kLayers);
  EXPECT_EQ(computed, kLayers);
  request.want_timeline = false;
  EXPECT_TRUE(Run(*worker, request).timeline.empty());
}

}  // namespace
}  // namespace cairn::worker
