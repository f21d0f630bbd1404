#pragma once
// A whole engine with a fake source, on one thread: what waits, waits for the fake clock or for the
// test. A call that held a thread while it waits would hang the test.

#include "common/concurrency/timers.h"
#include "services/cache/store/source/testing/fake_block_source.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {

class SourceTest : public EngineTest {
 protected:
  void StartWithSource(Options options = {}) {
    options.source = &source_;
    options.timers = &timers_;
    Start(options);
  }
  void TearDown() override {
    source_.DropAnswers();
    EngineTest::TearDown();
    EXPECT_EQ(timers_.pending(), 0u);
  }

  // A source's description of block n, in one part for each of `rects`.
  static SourceBlock Describe(uint64_t n, std::optional<uint64_t> parent,
                              const std::vector<std::vector<std::byte>>& bytes,
                              const std::vector<format::PartRect>& rects) {
    SourceBlock block;
    if (parent) block.parent = TestKey(*parent);
    block.at_start = n == 1;
    block.recompute_seconds = 0.5;
    for (size_t i = 0; i < rects.size(); ++i) {
      block.parts.push_back({rects[i], static_cast<uint32_t>(bytes[i].size())});
    }
    return block;
  }
  void GiveSource(uint64_t n, const std::vector<format::PartRect>& rects) {
    std::vector<std::vector<std::byte>> bytes;
    for (const auto& rect : rects) bytes.push_back(TestPart(spec_.layout, n, rect));
    const auto parent = n > 1 ? std::optional(n - 1) : std::nullopt;
    SourceBlock block = Describe(n, parent, bytes, rects);
    source_.Put(ns_, TestKey(n), std::move(block), std::move(bytes));
  }
  void GiveSource(uint64_t first, uint64_t last) {
    for (uint64_t n = first; n <= last; ++n) GiveSource(n, std::vector{Whole()});
  }

  // Moves the clock, and lets the source and the timers do what is due.
  void Pass(Duration time) {
    clock_.Advance(time);
    source_.RunDue();
    timers_.RunDue();
  }

  // A match whose answer may still come.
  struct Asked {
    std::vector<Result<MatchResult>> answers;
    bool answered() const { return !answers.empty(); }
    const MatchResult& result() const { return *answers.front(); }
  };
  std::shared_ptr<Asked> Ask(const std::vector<BlockKey>& keys, bool lease = true,
                             TimePoint deadline = TimePoint::max()) {
    auto asked = std::make_shared<Asked>();
    MatchResult local = Match(keys, lease);
    if (local.further == nullptr) {
      asked->answers.push_back(std::move(local));
      return asked;
    }
    const auto further = std::move(local.further);
    further->Find(deadline, [asked](Result<MatchResult> result) {
      asked->answers.push_back(std::move(result));
    });
    return asked;
  }

  std::unique_ptr<FetchStream> Begin(const MatchResult& match) {
    auto stream = engine_->Fetch({.session = session_, .lease = *match.lease, .trace = ""});
    EXPECT_OK(stream);
    return *std::move(stream);
  }
  // Takes what is there without waiting. False at the end. Block b of the lease is block first + b.
  bool TakeWhatIsThere(FetchStream& stream, uint64_t first, Fetched* fetched) {
    for (;;) {
      auto item = stream.Next(TimePoint());
      if (!item.ok()) {
        EXPECT_EQ(item.status().code(), StatusCode::kDeadlineExceeded);
        return true;
      }
      if (!*item) return false;
      if (const auto* failure = std::get_if<FetchFailure>(&**item)) {
        EXPECT_FALSE(fetched->failures.contains(failure->block)) << failure->block;
        fetched->failures[failure->block] = failure->reason;
        continue;
      }
      auto& slice = std::get<FetchedSlice>(**item);
      EXPECT_TRUE(IsSliceOf(first + slice.block, slice)) << slice.block;
      fetched->order.emplace_back(slice.layer, slice.block);
      if (!keep_holds_) slice.hold.reset();
      fetched->slices.push_back(std::move(slice));
    }
  }
  // All of a fetch that has nothing to wait for.
  Fetched TakeAll(const MatchResult& match, uint64_t first) {
    Fetched fetched;
    const auto stream = Begin(match);
    EXPECT_FALSE(TakeWhatIsThere(*stream, first, &fetched));
    return fetched;
  }
  uint32_t BlocksInHost(uint64_t first, uint64_t last) {
    const MatchResult match = Match(TestKeys(first, last), /*lease=*/false);
    return match.matched_blocks;
  }
  uint64_t Misses(MissReason reason) const {
    return engine_->GetStats().misses[static_cast<size_t>(reason)];
  }

  FakeBlockSource source_{&clock_};
  Timers timers_{&clock_};
};

}  // namespace cairn::cache::testing
