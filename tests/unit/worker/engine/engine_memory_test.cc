// What a worker's settings, its model and its limit make of its memory.

#include "services/worker/engine/engine_memory.h"

#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

using cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

class EngineMemoryTest : public EngineFixture {
 protected:
  static uint64_t BoundOf(const WorkerEngine& engine, MemoryItem item) {
    return engine.memory_bounds()[static_cast<size_t>(item)];
  }
};

TEST_F(EngineMemoryTest, TheSumIsWithinTheLimitAndDefaultsGiveWay) {
  WorkerEngine::Options options = Options();
  options.memory_limit = 500 * kMiB;
  options.request_bytes = 256 * kMiB;
  options.least_request_bytes = 16 * kMiB;
  const auto engine = WorkerWithoutCache(options);
  EXPECT_LE(Sum(engine->memory_bounds()), options.memory_limit);
  EXPECT_EQ(BoundOf(*engine, MemoryItem::kPool), 256 * kMiB);
  EXPECT_LT(BoundOf(*engine, MemoryItem::kParking), WorkerEngine::Options().parking_bytes);
  EXPECT_GE(BoundOf(*engine, MemoryItem::kRequests), 32 * kMiB);
  EXPECT_GT(BoundOf(*engine, MemoryItem::kWeights), 0u);
  EXPECT_GT(BoundOf(*engine, MemoryItem::kCompute), 0u);
}

TEST_F(EngineMemoryTest, WhatSomebodyHasSetDoesNotGiveWay) {
  WorkerEngine::Options options = Options();
  options.memory_limit = 500 * kMiB;
  options.parking_bytes = 400 * kMiB;
  EXPECT_THAT(WorkerEngine::Create(options, nullptr).status(),
              StatusIs(StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("memory.limit: got 500 MiB"), HasSubstr("kv_pool 256"),
                             HasSubstr("parking 400"))));
}

TEST_F(EngineMemoryTest, PagesThatARequestHoldsAreMeasured) {
  const auto engine = WorkerWithoutCache();
  MemoryAccount account(engine->memory_bounds());
  uint64_t during = 0;
  GenerateCallbacks callbacks;
  callbacks.on_token = [&](auto&&...) {
    engine->MeasureMemory(&account);
    during = std::max(during, account.used(MemoryItem::kPool));
    return true;
  };
  // The answer is long: the engine is still computing it when its first token is read.
  EXPECT_OK(engine->Generate(Request(200, 1, 200), callbacks));
  EXPECT_GE(during, 4 * kLayers * kLayerBytes);
  EXPECT_LE(during, account.bound(MemoryItem::kPool));
  EXPECT_EQ(account.used(MemoryItem::kWeights), account.bound(MemoryItem::kWeights));
  EXPECT_EQ(account.refusals(MemoryItem::kPool), 0u);
}

TEST_F(EngineMemoryTest, RequestsWithoutPagesAreCounted) {
  WorkerEngine::Options options = Options();
  options.kv_pool_bytes = 8 * kLayers * kLayerBytes;
  const auto engine = WorkerWithoutCache(options);
  EXPECT_THAT(engine->Generate(Request(600), {}),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("kv_pool: got 512KiB")));
  EXPECT_OK(engine->Generate(Request(100), {}));
  MemoryAccount account(engine->memory_bounds());
  engine->MeasureMemory(&account);
  EXPECT_EQ(account.refusals(MemoryItem::kPool), 1u);
  EXPECT_EQ(account.refusals(MemoryItem::kNear), 0u);
}

}  // namespace
}  // namespace cairn::worker
