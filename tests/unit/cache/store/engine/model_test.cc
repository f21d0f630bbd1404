// Random operations on a whole engine against a naive model, replayable by seed: never is a byte
// served that was not committed, or that was dropped; nothing leaks.

#include <random>
#include <set>

#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

constexpr uint64_t kBlocks = 150;
constexpr uint64_t kChain = 30;

class EngineModelTest : public EngineTest, public ::testing::WithParamInterface<uint64_t> {};

// Long: one random walk; each branch is one step of it.
TEST_P(EngineModelTest, ServesOnlyWhatWasCommitted) {
  const uint64_t seed = GetParam();
  std::mt19937_64 rng(seed);
  Options options;
  options.host_bytes = 1 << 20;     // 51 blocks of 150.
  options.disk_bytes = 1300 << 10;  // 79 blocks.
  options.engine.max_transfer_bytes = 100 << 10;
  options.engine.mover_queue_capacity = 16;
  ManualExecutor manual;
  executor_ = &manual;
  Start(options);
  const auto settle = [&] {
    disk_->RunHeld();
    while (manual.RunAll() + disk_->RunHeld() > 0) {
    }
  };
  std::set<uint64_t> committed;  // May be served: committed since the last drop.
  std::map<ReservationId, std::pair<uint64_t, format::PartRect>> reserved;
  std::vector<LeaseId> leases;
  struct Reader {
    std::unique_ptr<FetchStream> stream;
    uint64_t first;
    uint64_t generation;
  };
  std::vector<Reader> readers;
  uint64_t generation = 0;
  uint64_t commits = 0, slices = 0;

  const auto path = [](uint64_t n) { return TestKeys(n / kChain * kChain, n); };
  for (int step = 0; step < 3000; ++step) {
    SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(step));
    uint64_t n = rng() % kBlocks;
    switch (rng() % 16) {
      case 0:
      case 1:
      case 2:
      case 3: {  // Reserve, sometimes a half, mostly what a path lacks next.
        if (rng() % 4 != 0) {
          for (n = n / kChain * kChain; committed.contains(n) && n % kChain != kChain - 1;) ++n;
        }
        const uint32_t half = rng() % 6 == 0 ? 1 + static_cast<uint32_t>(rng() % 2) : 0;
        const format::PartRect rect{0, kLayers, static_cast<uint16_t>(half == 2 ? 1 : 0),
                                    static_cast<uint16_t>(half == 1 ? 1 : 2)};
        const auto parent = n % kChain == 0 || rng() % 8 == 0 ? std::nullopt : std::optional(n - 1);
        const auto id = Reserve(Part(n, parent, rect));
        if (id.ok()) reserved[*id] = {n, rect};
        break;
      }
      case 4:
      case 5:
      case 6: {  // Commit one, sometimes with bad bytes.
        if (reserved.empty()) break;
        const auto it =
            std::next(reserved.begin(), static_cast<ptrdiff_t>(rng() % reserved.size()));
        const auto [id, what] = *it;
        reserved.erase(it);
        auto bytes = TestPart(spec_.layout, what.first, what.second);
        const bool bad = rng() % 10 == 0;
        if (bad) bytes[rng() % bytes.size()] ^= std::byte{1};
        const Status written = engine_->Write(session_, id, 0, bytes);
        const Status status = CommitOne(id);
        if (bad) {
          ASSERT_FALSE(status.ok());
        }
        if (status.ok()) {
          ASSERT_OK(written);
          committed.insert(what.first);
          ++commits;
        }
        break;
      }
      case 7: {  // Match.
        MatchRequest request;
        request.session = session_;
        request.fingerprint = ns_;
        const auto keys = path(n);
        request.keys = keys;
        const auto match = engine_->Match(request);
        ASSERT_OK(match);
        for (uint32_t b = 0; b < match->matched_blocks; ++b) {
          ASSERT_TRUE(committed.contains(n / kChain * kChain + b))
              << "matched a block that was never committed";
        }
        if (!match->lease) break;
        leases.push_back(*match->lease);
        auto stream = engine_->Fetch({.session = session_, .lease = *match->lease, .trace = ""});
        ASSERT_OK(stream);
        readers.push_back({*std::move(stream), n / kChain * kChain, generation});
        break;
      }
      case 8:
      case 9:
      case 10: {  // Read on.
        if (readers.empty()) break;
        const size_t r = rng() % readers.size();
        for (int i = 0; i < 20; ++i) {
          auto item = readers[r].stream->Next(clock_.Now());
          if (!item.ok()) break;
          if (!*item) {
            readers.erase(readers.begin() + static_cast<ptrdiff_t>(r));
            break;
          }
          if (const auto* slice = std::get_if<FetchedSlice>(&**item)) {
            ASSERT_EQ(readers[r].generation, generation)
                << "served after its namespace was dropped";
            ASSERT_TRUE(IsSliceOf(readers[r].first + slice->block, *slice));
            ++slices;
          }
        }
        break;
      }
      case 11: {
        if (leases.empty()) break;
        const size_t l = rng() % leases.size();
        ASSERT_OK(engine_->Release(session_, {&leases[l], 1}));
        leases.erase(leases.begin() + static_cast<ptrdiff_t>(l));
        break;
      }
      case 12: {
        clock_.Advance(std::chrono::milliseconds(rng() % 4000));
        engine_->Tick();
        break;
      }
      case 13: {  // Faults.
        switch (rng() % 5) {
          case 0:
            disk_->FailWrites(1, Errorf(StatusCode::kUnavailable, "write"));
            break;
          case 1:
            disk_->FailReads(1, Errorf(StatusCode::kUnavailable, "read"));
            break;
          case 2:
            disk_->CorruptReads(1);
            break;
          default:
            disk_->HoldCallbacks(rng() % 2 == 0);
            break;
        }
        break;
      }
      case 14: {
        for (uint64_t i = rng() % 20; i > 0; --i) {
          if (!manual.RunOne()) disk_->RunOneHeld();
        }
        break;
      }
      case 15: {
        const uint64_t what = rng() % 60;
        if (what == 0) {
          ASSERT_OK(engine_->BumpEpoch(ns_));
          committed.clear();
          reserved.clear();
          ++generation;
        } else if (what == 1) {
          engine_->CloseSession(session_);
          session_ = *engine_->OpenSession("again");
          leases.clear();
          reserved.clear();
        } else if (what == 2) {
          readers.clear();
          leases.clear();
          reserved.clear();
          disk_->HoldCallbacks(false);
          settle();
          if (rng() % 2 == 0) {
            ASSERT_OK(disk_->Flush());
          }
          CrashAndRestart();
        } else {
          settle();
        }
        break;
      }
    }
  }

  // Everything ends: nothing is pinned, and a drop gives back every byte.
  readers.clear();
  disk_->HoldCallbacks(false);
  disk_->CorruptReads(0);
  disk_->FailReads(0, OkStatus());
  disk_->FailWrites(0, OkStatus());
  engine_->CloseSession(session_);
  for (int i = 0; i < 20; ++i) {
    clock_.Advance(std::chrono::seconds(10));
    engine_->Tick();
    settle();
  }
  const EngineStats stats = engine_->GetStats();
  EXPECT_EQ(stats.reserved_bytes, 0u);
  EXPECT_EQ(stats.incomplete_blocks, 0u);
  EXPECT_EQ(stats.unflushed_bytes, 0u);
  EXPECT_EQ(stats.mover_queue_depth, 0u);
  EXPECT_GT(commits, 50u);  // Else the test tested nothing.
  EXPECT_GT(slices, 200u);
  ASSERT_OK(engine_->DropNamespace(ns_));
  settle();
  EXPECT_EQ(host_->GetStats().used_bytes, 0u);
  EXPECT_EQ(disk_->GetStats().used_bytes, 0u);
  session_ = *engine_->OpenSession("end");
}

INSTANTIATE_TEST_SUITE_P(Seeds, EngineModelTest, ::testing::Range<uint64_t>(1, 17));

}  // namespace
}  // namespace cairn::cache::testing
