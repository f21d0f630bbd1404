// Under a lossy recipe one key stands for one set of bytes, wherever fetched and computed parts of
// a prompt met, and whatever the node had lost.

#include <algorithm>
#include <atomic>
#include <cctype>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>

#include "cairn/common/hash.h"
#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

// The blocks that were pushed under each key, by all workers.
struct Pushed {
  std::mutex mu;
  std::map<std::pair<Digest, BlockKey>, Digest> first;
  uint64_t again = 0;
  uint64_t differing = 0;
};

// A node that has lost the ends of prompts, and whose fetches break off or are slow.
class UnluckyClient final : public SharedClient {
 public:
  struct Luck {
    std::atomic<uint32_t> blocks{UINT32_MAX};  // That a match finds at most.
    std::atomic<uint32_t> slices{UINT32_MAX};  // That a fetch brings before it breaks off.
    std::atomic<int64_t> pause_us{0};          // Before each slice.
    // Slices that come instead, by block and layer: the node has only a copy in another codec.
    std::map<std::pair<uint32_t, uint32_t>, std::vector<std::byte>> recoded;
    format::Codec codec = format::Codec::kRaw;  // The codec of these.
  };
  UnluckyClient(InMemoryCacheClient& node, Pushed& pushed, Luck& luck)
      : SharedClient(node), pushed_(pushed), luck_(luck) {}

  Result<client::MatchOutcome> Match(const Digest& fingerprint, std::span<const BlockKey> keys,
                                     const client::MatchOptions& options) override {
    return SharedClient::Match(fingerprint, keys.first(std::min<size_t>(keys.size(), luck_.blocks)),
                               options);
  }
  // Everything is pushed, so that it can be compared.
  Result<std::vector<std::optional<client::TierKind>>> Exists(const Digest&,
                                                              std::span<const BlockKey> keys,
                                                              const client::CallOptions&) override {
    return std::vector<std::optional<client::TierKind>>(keys.size());
  }
  Result<std::vector<Status>> Push(const Digest& fingerprint,
                                   std::span<const client::PartToPush> parts,
                                   const client::PushOptions& options) override {
    {
      std::lock_guard lock(pushed_.mu);
      for (const client::PartToPush& part : parts) {
        const Digest bytes = Sha256().Update(part.bytes).Finish();
        const auto [it, first] = pushed_.first.try_emplace({fingerprint, part.key}, bytes);
        pushed_.again += first ? 0 : 1;
        pushed_.differing += it->second == bytes ? 0 : 1;
      }
    }
    return SharedClient::Push(fingerprint, parts, options);
  }
  Status Fetch(const client::Lease& lease, const client::FetchRange& range, client::FetchSink& sink,
               const client::FetchOptions& options) override {
    UnluckySink unlucky(sink, luck_, options.cancel);
    return SharedClient::Fetch(lease, range, unlucky, options);
  }

 private:
  class UnluckySink final : public client::FetchSink {
   public:
    UnluckySink(client::FetchSink& sink, const Luck& luck, std::stop_token cancel)
        : sink_(sink),
          luck_(luck),
          cancel_(std::move(cancel)),
          left_(luck.slices),
          pause_(luck.pause_us) {}
    std::span<std::byte> Destination(const client::SliceInfo& slice) override {
      return sink_.Destination(slice);
    }
    Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override {
      if (left_-- == 0) return Status(StatusCode::kUnavailable, "the node is gone");
      std::unique_lock lock(mu_);
      changed_.wait_for(lock, cancel_, std::chrono::microseconds(pause_), [] { return false; });
      if (cancel_.stop_requested()) return Status(StatusCode::kCancelled, "cancelled");
      const auto recoded = luck_.recoded.find({slice.block, slice.layer});
      if (recoded == luck_.recoded.end()) return sink_.OnSlice(slice, data);
      client::SliceInfo other = slice;
      other.codec = luck_.codec;
      other.slice_bytes = recoded->second.size();
      return sink_.OnSlice(other, recoded->second);
    }
    void OnBlockFailed(uint32_t block, client::MissReason reason) override {
      sink_.OnBlockFailed(block, reason);
    }

   private:
    client::FetchSink& sink_;
    const Luck& luck_;
    const std::stop_token cancel_;
    std::mutex mu_;
    std::condition_variable_any changed_;
    uint32_t left_;
    const int64_t pause_;
  };

  Pushed& pushed_;
  Luck& luck_;
};

class Slices final : public client::FetchSink {
 public:
  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override {
    bytes[{slice.block, slice.layer}] = {data.begin(), data.end()};
    codec = slice.codec;
    return OkStatus();
  }
  void OnBlockFailed(uint32_t block, client::MissReason) override { ADD_FAILURE() << block; }

  std::map<std::pair<uint32_t, uint32_t>, std::vector<std::byte>> bytes;
  format::Codec codec = format::Codec::kRaw;
};

class LossyLadderTest : public EngineFixture {
 protected:
  std::unique_ptr<WorkerEngine> Unlucky(const WorkerEngine::Options& options) {
    auto engine =
        WorkerEngine::Create(options, std::make_unique<UnluckyClient>(node_, pushed_, luck_));
    EXPECT_OK(engine);
    return *std::move(engine);
  }

  Pushed pushed_;
  UnluckyClient::Luck luck_;
};

class LossyLineageTest : public LossyLadderTest, public ::testing::WithParamInterface<const char*> {
 protected:
  std::unique_ptr<WorkerEngine> WithRecipe(bool choose) {
    WorkerEngine::Options options = Options();
    options.recipe = GetParam();
    options.prefix.choose = choose;
    return Unlucky(options);
  }
};

TEST_P(LossyLineageTest, OneKeyHasOneSetOfBytesWhereverPartsMet) {
  std::mt19937 random(20);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  for (const bool choose : {false, true}) {
    // One that fetches while it computes, and one that learns nothing from the other's requests.
    auto one = WithRecipe(choose), two = WithRecipe(choose);
    for (int i = 0; i < 60; ++i) {
      if (below(12) == 0) node_.Clear();
      luck_.blocks = below(3) == 0 ? UINT32_MAX : below(10);
      luck_.slices = below(3) == 0 ? below(16) : UINT32_MAX;
      luck_.pause_us = choose ? below(3) * 800 : 0;
      WorkerEngine& worker = below(2) == 0 ? *one : *two;
      Run(worker, Request(20 + below(580), 1 + static_cast<int32_t>(below(2)), 1));
      Idle(worker);
    }
  }
  EXPECT_EQ(pushed_.differing, 0u) << "of " << pushed_.again << " pushes of a key that was known";
  EXPECT_GT(pushed_.again, 100u);
  EXPECT_GT(pushed_.first.size(), 15u);
}

// A conversation: each turn is computed over all that was stored before it, and is found by the
// next one.
TEST_P(LossyLineageTest, EachTurnFindsAllOfTheOnesBefore) {
  auto worker = WithRecipe(true);
  for (uint32_t turn = 1; turn <= 5; ++turn) {
    const GenerateSummary summary = Run(*worker, Request(turn * 2 * kBlockTokens + 1, 3, 1));
    EXPECT_EQ(summary.fetched_tokens + summary.chosen_tokens, (turn - 1) * 2 * kBlockTokens);
    Idle(*worker);
  }
  EXPECT_EQ(pushed_.first.size(), 10u);
  EXPECT_EQ(pushed_.again, 0u);
}

// A ladder's rung on disk decodes to other numbers, and the key does not say which they were.
TEST_F(LossyLadderTest, WhatWasComputedOverALaterRungIsNotPushed) {
  WorkerEngine::Options options = Options();
  options.recipe = "host=int8>disk=turbo:bits=4";
  options.publish = {"turbo:bits=4"};
  auto writer = Unlucky(options);
  const GenerateRequest start = Request(3 * kBlockTokens + 1);
  Run(*writer, start);
  Idle(*writer);
  WorkerEngine::Options turbo = Options();
  turbo.recipe = options.publish[0];
  const Digest fingerprint = *Worker(turbo)->GetInfo().fingerprint;
  Slices slices;
  {
    const auto& ids = std::get<TokenPrompt>(start.prompt).ids;
    const auto match =
        node_.Match(fingerprint, BlockKeyChain(fingerprint).Keys(ids, kBlockTokens), {});
    ASSERT_OK(match);
    ASSERT_EQ(match->matched_blocks, 3u);
    ASSERT_OK(node_.Fetch(match->lease, {}, slices, {}));
  }
  options.publish.clear();
  auto reader = Unlucky(options);
  const size_t before = pushed_.first.size();
  luck_.recoded = {{{1, 0}, slices.bytes.at({1, 0})}, {{1, 1}, slices.bytes.at({1, 1})}};
  luck_.codec = slices.codec;
  const GenerateRequest longer = Request(5 * kBlockTokens + 1);
  EXPECT_EQ(Run(*reader, longer).fetched_tokens, 3 * kBlockTokens);
  Idle(*reader);
  EXPECT_EQ(pushed_.first.size(), before);
  luck_.recoded.clear();
  EXPECT_EQ(Run(*reader, longer).fetched_tokens, 3 * kBlockTokens);
  Idle(*reader);
  EXPECT_EQ(pushed_.first.size(), before + 2);
}

INSTANTIATE_TEST_SUITE_P(Recipes, LossyLineageTest,
                         ::testing::Values("int8", "turbo:bits=4", "raw"), [](const auto& recipe) {
                           std::string name = recipe.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); },
                               '_');
                           return name;
                         });

}  // namespace
}  // namespace cairn::worker
