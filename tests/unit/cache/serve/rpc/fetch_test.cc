// Fetch: what arrives, and what readers that stop do to others.

#include <gmock/gmock.h>

#include <thread>
#include <vector>

#include "common/status/matchers.h"
#include "tests/unit/cache/serve/rpc/service_fixture.h"

namespace cairn::cache {
namespace {

using ::testing::HasSubstr;

// Room for two frames of all fetches together, and little patience.
class SmallBudgetTest : public ServiceTest {
 protected:
  void SetUp() override {
    rpc.options.send_bytes = 128 << 10;
    rpc.options.patience = std::chrono::seconds(1);
    StartServer(1024);
  }
};

TEST_F(ServiceTest, FetchDeliversEveryByteOnceAndReportsFailures) {
  for (uint32_t block = 0; block < 20; ++block)
    engine.items.push_back(MakeSlice(block, 10'000 * block));
  engine.items.push_back(FetchFailure{20, MissReason::kCorrupt});
  const v1::FetchRequest request = FetchOfLease7();
  grpc::ClientContext context;
  auto reader = stub->Fetch(&context, request);
  std::map<uint32_t, std::string> got;
  std::vector<uint32_t> failed;
  v1::FetchFrame frame;
  size_t frames = 0;
  while (reader->Read(&frame)) {
    ++frames;
    size_t bytes = 0;
    for (const v1::Slice& slice : frame.slices()) {
      EXPECT_EQ(slice.offset(), got[slice.block()].size());
      EXPECT_EQ(slice.slice_bytes(), 10'000u * slice.block());
      got[slice.block()] += slice.data();
      bytes += slice.data().size();
    }
    for (const auto& failure : frame.failed()) failed.push_back(failure.block());
    EXPECT_LE(bytes, 64u << 10);
  }
  EXPECT_TRUE(reader->Finish().ok());
  ASSERT_EQ(got.size(), 20u);
  for (const auto& [block, bytes] : got)
    EXPECT_EQ(bytes, std::string(10'000 * block, static_cast<char>('a' + block % 26)));
  EXPECT_THAT(failed, ::testing::ElementsAre(20));
  EXPECT_GE(frames, 1'900'000u / (64 << 10));
}

TEST_F(ServiceTest, AFetchWithALookupSaysWhatItFoundAndGivesItsLeaseBack) {
  engine.items.push_back(MakeSlice(0, 1000));
  v1::FetchRequest request;
  request.set_session_id(Session());
  request.mutable_lookup()->set_fingerprint(FingerprintBytes());
  request.mutable_lookup()->set_keys(std::string(3 * 32, 'k'));
  grpc::ClientContext context;
  auto reader = stub->Fetch(&context, request);
  v1::FetchFrame frame;
  ASSERT_TRUE(reader->Read(&frame));
  EXPECT_EQ(frame.matched().matched_blocks(), 2u);
  EXPECT_EQ(frame.matched().lease_id(), 0u);
  EXPECT_EQ(frame.matched().miss_reason(), v1::MISS_REASON_EVICTED);
  ASSERT_EQ(frame.slices_size(), 1);
  EXPECT_EQ(frame.slices(0).data().size(), 1000u);
  EXPECT_FALSE(reader->Read(&frame));
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(engine.Wait([&] { return engine.released == std::vector<LeaseId>{7}; }));
}

// A group of rows that keeps its own bytes.
FetchedRows MakeRows(uint32_t block, uint32_t head, size_t bytes) {
  auto hold = std::make_shared<std::string>(bytes, static_cast<char>('a' + block % 26));
  FetchedRows rows;
  rows.block = block;
  rows.head = head;
  rows.codec = format::Codec::kInt8;
  rows.slice_xxh3 = 100 + block;
  rows.xxh3 = 200 + block;
  rows.tier = TierKind::kHost;
  rows.data = std::as_bytes(std::span(*hold));
  rows.hold = hold;
  return rows;
}

TEST_F(ServiceTest, RowsComeWholeAndInFramesOfTheirLimit) {
  for (uint32_t block = 0; block < 30; ++block) {
    engine.items.push_back(MakeRows(block, block % 3, 300 + 1000 * block));
  }
  engine.items.push_back(MakeRows(30, 0, 100 << 10));  // More than a frame: alone in one.
  engine.items.push_back(FetchFailure{31, MissReason::kCorrupt});
  v1::FetchRequest request = FetchOfLease7();
  request.set_layer_begin(2);
  request.set_layer_end(3);
  for (uint32_t block = 0; block < 32; ++block) {
    v1::RowGroup& group = *request.add_rows();
    group.set_block(block);
    group.set_head(block % 3);
    group.add_mask(block + 1);
  }
  grpc::ClientContext context;
  auto reader = stub->Fetch(&context, request);
  std::vector<uint32_t> got, failed;
  v1::FetchFrame frame;
  while (reader->Read(&frame)) {
    size_t bytes = 0;
    for (const v1::Rows& rows : frame.rows()) {
      const uint32_t block = rows.block();
      got.push_back(block);
      const size_t size = block == 30 ? 100 << 10 : 300 + 1000 * block;
      EXPECT_EQ(rows.data(), std::string(size, static_cast<char>('a' + block % 26)));
      EXPECT_EQ(static_cast<int>(rows.codec()), static_cast<int>(format::Codec::kInt8));
      EXPECT_EQ(rows.slice_xxh3(), 100 + block);
      EXPECT_EQ(rows.xxh3(), 200 + block);
      EXPECT_EQ(rows.tier(), v1::TIER_KIND_HOST);
      bytes += rows.data().size();
    }
    for (const auto& failure : frame.failed()) failed.push_back(failure.block());
    EXPECT_TRUE(bytes <= 64u << 10 || frame.rows_size() == 1);
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(got.size(), 31u);
  EXPECT_TRUE(std::is_sorted(got.begin(), got.end()));
  EXPECT_THAT(failed, ::testing::ElementsAre(31));
  ASSERT_EQ(engine.fetched_rows.size(), 32u);
  EXPECT_EQ(engine.fetched_rows[4], (FakeEngine::AskedRows{4, 1, {5}}));
}

TEST_F(ServiceTest, RequestsForRowsThatCannotBeAreRefused) {
  const v1::FetchRequest good = [&] {
    v1::FetchRequest request = FetchOfLease7();
    request.set_layer_begin(2);
    request.set_layer_end(3);
    request.add_rows()->add_mask(1);
    return request;
  }();
  const auto refused = [&](const v1::FetchRequest& request, const std::string& field) {
    grpc::ClientContext context;
    auto reader = stub->Fetch(&context, request);
    v1::FetchFrame frame;
    EXPECT_FALSE(reader->Read(&frame));
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_THAT(status.error_message(), HasSubstr(field));
  };
  v1::FetchRequest layers = good;
  layers.set_layer_end(4);
  refused(layers, "layer_end");
  v1::FetchRequest verifies = good;
  verifies.set_reader_verifies(true);
  refused(verifies, "reader_verifies");
  v1::FetchRequest outside = good;
  outside.set_block_begin(1);
  outside.set_block_end(2);
  refused(outside, "rows[0].block");
  v1::FetchRequest many = good;
  for (size_t i = 0; i < kMaxRowGroups; ++i) many.add_rows();
  refused(many, "rows");
  v1::FetchRequest lookup = good;
  lookup.set_lease_id(0);
  lookup.mutable_lookup()->set_fingerprint(FingerprintBytes());
  lookup.mutable_lookup()->set_keys(std::string(32, 'k'));
  refused(lookup, "rows");
}

TEST_F(ServiceTest, FetchErrorsEndTheStreamAfterWhatWasRead) {
  engine.items.push_back(MakeSlice(1, 1000));
  engine.end = Errorf(StatusCode::kDeadlineExceeded, "disk");
  const v1::FetchRequest request = FetchOfLease7();
  grpc::ClientContext context;
  auto reader = stub->Fetch(&context, request);
  v1::FetchFrame frame;
  EXPECT_TRUE(reader->Read(&frame));
  EXPECT_EQ(frame.slices_size(), 1);
  EXPECT_FALSE(reader->Read(&frame));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(ServiceTest, ASlowReaderHoldsTheFetchBackAndItsCancelEndsIt) {
  engine.endless = true;
  engine.items.push_back(MakeSlice(1, 60'000));
  const v1::FetchRequest request = FetchOfLease7();
  grpc::ClientContext context;
  auto reader = stub->Fetch(&context, request);
  v1::FetchFrame frame;
  ASSERT_TRUE(reader->Read(&frame));
  // Nobody reads on: flow control lets a bounded number of frames through, then the engine is left
  // in peace.
  size_t seen = 0;
  for (int quiet = 0; quiet < 20;) {
    MutexLock lock(engine.mu);
    const size_t before = engine.fetched;
    engine.changed.WaitUntil(engine.mu,
                             std::chrono::steady_clock::now() + std::chrono::milliseconds(20),
                             []() ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine.mu) { return false; });
    quiet = engine.fetched == before ? quiet + 1 : 0;
    seen = engine.fetched;
    ASSERT_LT(seen, 2000u) << "120 MB were read ahead";
  }
  context.TryCancel();
  EXPECT_TRUE(engine.Wait([&] { return engine.ended_fetches == 1; }));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

// Readers that read one frame and then nothing, until they are cancelled.
class StoppedReaders {
 public:
  StoppedReaders(v1::Cache::Stub* stub, const v1::FetchRequest& request, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      contexts_.push_back(std::make_unique<grpc::ClientContext>());
      readers_.push_back(stub->Fetch(contexts_.back().get(), request));
      v1::FetchFrame frame;
      EXPECT_TRUE(readers_.back()->Read(&frame));
    }
  }
  ~StoppedReaders() {
    for (size_t i = 0; i < readers_.size(); ++i) {
      contexts_[i]->TryCancel();
      if (readers_[i] != nullptr) readers_[i]->Finish();
    }
  }
  // Reads on; how it ended.
  grpc::Status End(size_t i) {
    v1::FetchFrame frame;
    while (readers_[i]->Read(&frame)) {
    }
    const grpc::Status status = readers_[i]->Finish();
    readers_[i].reset();
    return status;
  }

 private:
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::FetchFrame>>> readers_;
};

TEST_F(ServiceTest, AStoppedReaderLosesItsPinsWhenItsLeaseEnds) {
  engine.endless = true;
  engine.items.push_back(MakeSlice(1, 60'000));
  rpc.options.lease_grace = std::chrono::milliseconds(50);
  const v1::FetchRequest request = FetchOfLease7();
  StoppedReaders stopped(stub.get(), request, 1);
  {
    MutexLock lock(engine.mu);
    engine.lease_over = true;
  }
  EXPECT_TRUE(engine.Wait([&] { return engine.ended_fetches == 1; }));
  EXPECT_NE(stopped.End(0).error_code(), grpc::StatusCode::OK);
  // The bytes that were on their way are let go, too.
  const std::weak_ptr<const void> hold = std::get<FetchedSlice>(engine.items[0]).hold;
  engine.items.clear();
  for (int i = 0; i < 500 && !hold.expired(); ++i) {
    MutexLock lock(engine.mu);
    engine.changed.WaitUntil(engine.mu,
                             std::chrono::steady_clock::now() + std::chrono::milliseconds(20),
                             []() ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine.mu) { return false; });
  }
  EXPECT_TRUE(hold.expired());
  EXPECT_THAT(registry.Scrape(), HasSubstr("cairn_rpc_rejected_total{reason=\"stalled\"} 1"));
}

TEST_F(ServiceTest, AStoppedReaderGivesBackBuffersThatOthersWaitFor) {
  engine.endless = true;
  engine.items.push_back(MakeSlice(1, 60'000));
  rpc.options.patience = std::chrono::milliseconds(50);
  const v1::FetchRequest request = FetchOfLease7();
  StoppedReaders stopped(stub.get(), request, 1);
  {
    MutexLock lock(engine.mu);
    engine.others_wait = true;
  }
  EXPECT_TRUE(engine.Wait([&] { return engine.ended_fetches == 1; }));
  const grpc::Status end = stopped.End(0);
  EXPECT_EQ(end.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(end.error_message(), ::testing::HasSubstr("limits.transfers"));
}

TEST_F(SmallBudgetTest, StoppedReadersMakeRoomForOthers) {
  engine.endless = true;
  engine.items.push_back(MakeSlice(1, 60'000));
  const v1::FetchRequest request = FetchOfLease7();
  const StoppedReaders stopped(stub.get(), request, 4);
  // All four have as much on its way as flow control lets them, and the budget is used up by what
  // is stuck.
  for (int i = 0; i < 3; ++i) {
    grpc::ClientContext context;
    const auto reader = stub->Fetch(&context, request);
    v1::FetchFrame frame;
    for (int frames = 0; frames < 20; ++frames)
      ASSERT_TRUE(reader->Read(&frame)) << i << ", frame " << frames;
    context.TryCancel();
    reader->Finish();
  }
}

TEST_F(SmallBudgetTest, ManyFetchesShareTheBudgetAndAllArrive) {
  // All of them read on, and a busy machine must not cut one off that is slow to do so.
  rpc.options.patience = std::chrono::seconds(60);
  for (uint32_t block = 0; block < 20; ++block) engine.items.push_back(MakeSlice(block, 50'000));
  const v1::FetchRequest request = FetchOfLease7();
  std::atomic<size_t> whole{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        grpc::ClientContext context;
        const auto reader = stub->Fetch(&context, request);
        v1::FetchFrame frame;
        size_t bytes = 0;
        while (reader->Read(&frame)) {
          for (const v1::Slice& slice : frame.slices()) bytes += slice.data().size();
        }
        if (reader->Finish().ok() && bytes == 1'000'000) ++whole;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(whole, 40u);
}

}  // namespace
}  // namespace cairn::cache
