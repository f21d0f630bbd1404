// Many threads on one engine, with a small arena and a disk: for TSan and ASan. Every byte that is
// served is verified.

#include <atomic>
#include <random>
#include <thread>

#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

class StressTest : public EngineTest {};

// Long: what each of the threads does stands side by side.
TEST_F(StressTest, WritersReadersAndDropsShareOneEngine) {
  ThreadPool pool({.name = "moves", .threads = 2});
  executor_ = &pool;
  Options options;
  options.host_bytes = 2 << 20;
  options.disk_bytes = 4 << 20;
  options.engine.max_transfer_bytes = 256 << 10;
  Start(options);
  constexpr int kRounds = 150;
  std::atomic<uint64_t> served{0};
  std::atomic<int> busy{0};
  Mutex mu;
  CondVar done;
  const auto leave = [&] {
    MutexLock lock(mu);
    --busy;
    done.NotifyAll();
  };
  std::atomic<int> writing{3};

  const auto writer = [&](uint64_t seed) {
    std::mt19937_64 rng(seed);
    for (int round = 0; round < kRounds; ++round) {
      const SessionId session = *engine_->OpenSession("writer");
      const uint64_t chain = rng() % 8;
      for (uint64_t i = 0; i < 20; ++i) {
        const uint64_t n = chain * 100 + i;
        const auto part = Part(n, i == 0 ? std::nullopt : std::optional(n - 1));
        auto id = Reserve(part, session);
        if (!id.ok()) continue;
        if (!engine_->Write(session, *id, 0, TestPart(spec_.layout, n, part.part)).ok()) continue;
        if (rng() % 16 != 0) (void)engine_->Commit(session, {&*id, 1}, "t");
      }
      engine_->CloseSession(session);  // With what was not committed.
    }
    --writing;
    leave();
  };
  const auto reader = [&](uint64_t seed) {
    std::mt19937_64 rng(seed);
    const SessionId session = *engine_->OpenSession("reader");
    // As long as there are writers: a reader that is faster than the first commit would serve
    // nothing.
    for (int round = 0; round < kRounds || writing > 0; ++round) {
      const uint64_t first = rng() % 8 * 100;
      const auto keys = TestKeys(first, first + 19);
      MatchRequest request{.session = session, .fingerprint = ns_, .keys = keys, .trace = ""};
      const auto match = engine_->Match(request);
      if (!match.ok() || !match->lease) continue;
      auto stream = engine_->Fetch({.session = session, .lease = *match->lease, .trace = ""});
      for (int i = 0; stream.ok(); ++i) {
        auto item = (*stream)->Next(clock_.Now() + std::chrono::seconds(20));
        ASSERT_OK(item);
        if (!*item) break;
        if (const auto* slice = std::get_if<FetchedSlice>(&**item)) {
          ASSERT_TRUE(IsSliceOf(first + slice->block, *slice));
          ++served;
        }
        if (i == 10 && rng() % 4 == 0) (void)engine_->Release(session, {&*match->lease, 1});
      }
      (void)engine_->Release(session, {&*match->lease, 1});
    }
    engine_->CloseSession(session);
    leave();
  };
  std::vector<std::thread> threads;
  busy = 5;
  for (uint64_t s = 0; s < 3; ++s) threads.emplace_back(writer, s);
  for (uint64_t s = 0; s < 2; ++s) threads.emplace_back(reader, 100 + s);
  auto watch = *engine_->Watch({.snapshot = true});
  int ticks = 0;
  while (busy > 0) {
    engine_->Tick();
    (void)engine_->GetStats();
    (void)watch->Next(1000, clock_.Now());
    {
      MutexLock lock(mu);
      done.WaitUntil(mu, SteadyClock::Get().Now() + std::chrono::milliseconds(2),
                     [&] { return busy == 0; });
    }
    clock_.Advance(std::chrono::milliseconds(5));
    const auto hinted = TestKeys(ticks % 8 * 100, ticks % 8 * 100 + 19);
    (void)engine_->Prefetch({.session = session_,
                             .fingerprint = ns_,
                             .keys = hinted,
                             .needed_in = std::chrono::milliseconds(ticks % 50)});
    if (ticks % 20 == 0) watch = *engine_->Watch({.fingerprint = ns_, .snapshot = true});
    if (++ticks % 50 == 0) {
      ASSERT_OK(engine_->BumpEpoch(ns_));
      (void)engine_->Flush(clock_.Now());
    }
  }
  for (std::thread& thread : threads) thread.join();
  watch.reset();
  EXPECT_GT(served, 0u);
  clock_.Advance(std::chrono::seconds(100));
  engine_->Tick();
  ASSERT_OK(engine_->DropNamespace(ns_));
  const TimePoint deadline = SteadyClock::Get().Now() + std::chrono::seconds(60);
  while (host_->GetStats().used_bytes + disk_->GetStats().used_bytes > 0 &&
         SteadyClock::Get().Now() < deadline) {
    engine_->Tick();
    std::this_thread::yield();
  }
  EXPECT_EQ(host_->GetStats().used_bytes, 0u);
  EXPECT_EQ(disk_->GetStats().used_bytes, 0u);
  pool.Stop();
  engine_->CloseSession(session_);
  engine_.reset();
}

}  // namespace
}  // namespace cairn::cache::testing
