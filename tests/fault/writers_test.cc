// Six processes write the parts of one namespace, two layer ranges by three KV heads, and one of
// them is killed. Readers of other shapes get equal bytes or a miss; blocks that will never be
// whole go away.

#include <gtest/gtest.h>

#include <thread>

#include "tests/fault/support/fault_support.h"

namespace cairn::fault {
namespace {

constexpr uint32_t kLayers = 4, kHeads = 3, kPrompts = 150;

std::vector<std::string> RectFlags(const format::PartRect& rect) {
  return {"--layer_begin", std::to_string(rect.layer_begin),
          "--layer_end",   std::to_string(rect.layer_end),
          "--head_begin",  std::to_string(rect.head_begin),
          "--head_end",    std::to_string(rect.head_end)};
}

std::vector<format::PartRect> WriterRects() {
  std::vector<format::PartRect> rects;
  for (uint16_t layer = 0; layer < kLayers; layer += 2) {
    for (uint16_t head = 0; head < kHeads; ++head) {
      rects.push_back(
          {layer, static_cast<uint16_t>(layer + 2), head, static_cast<uint16_t>(head + 1)});
    }
  }
  return rects;
}

// None of these is a writer's: rows of two layer ranges and of several heads.
const format::PartRect kReaderRects[] = {{0, 4, 0, 3}, {1, 3, 0, 2}, {0, 4, 1, 3}};

class FaultWritersTest : public ::testing::Test {
 protected:
  void StartNode(const std::string& incomplete_ttl) {
    auto node = Node::Start({"--host.capacity", "256MiB", "--disk.path",
                             directory_.path() + "/disk", "--disk.capacity", "1GiB",
                             "--disk.min_free", "0", "--incomplete.ttl", incomplete_ttl});
    ASSERT_TRUE(node.ok()) << ToString(node.status());
    node_ = *std::move(node);
    options_.layers = kLayers;
    options_.kv_heads = kHeads;
    options_.dim = 32;
    model_.emplace(options_);
    client_ = ConnectAndOpen(node_->address(), *model_);
  }

  std::unique_ptr<Loader> Start(const std::string& mode, const format::PartRect& rect,
                                uint64_t ops) {
    std::vector<std::string> args = RectFlags(rect);
    args.insert(args.end(), {"--mode", mode, "--ops", std::to_string(ops), "--prompts",
                             std::to_string(kPrompts)});
    auto loader = Loader::Start(node_->address(), options_, random_() % 1'000'000, args);
    EXPECT_TRUE(loader.ok()) << ToString(loader.status());
    return loader.ok() ? *std::move(loader) : nullptr;
  }

  // Reads every prompt in every shape.
  void ReadAll(uint64_t* complete, uint64_t* missed, uint64_t* incomplete) {
    for (uint64_t prompt = 0; prompt < kPrompts; ++prompt) {
      const std::vector<BlockKey> keys = model_->MakePrompt(prompt);
      for (const format::PartRect& want : kReaderRects) {
        const ReadOutcome outcome = Read(*client_, *model_, keys, {.want = want});
        ASSERT_TRUE(outcome.status.ok()) << ToString(outcome.status);
        ASSERT_TRUE(outcome.wrong.empty()) << outcome.wrong.front();
        EXPECT_EQ(outcome.complete_blocks, outcome.matched_blocks) << "matched, but not whole";
        *complete += outcome.complete_blocks;
        *missed += keys.size() - outcome.complete_blocks;
        *incomplete += outcome.misses[static_cast<size_t>(client::MissReason::kIncomplete)];
        verified_bytes_ += outcome.verified_bytes;
      }
    }
  }

  std::vector<uint64_t> PartSizes() const {
    std::vector<uint64_t> sizes;
    for (const format::PartRect& rect : WriterRects()) sizes.push_back(model_->PartBytes(rect));
    return sizes;
  }

  const TemporaryDirectory directory_;
  std::mt19937_64 random_{Seed()};
  std::unique_ptr<Node> node_;
  FaultModelOptions options_;
  std::optional<FaultModel> model_;
  std::unique_ptr<client::CacheClient> client_;
  uint64_t verified_bytes_ = 0;
};

TEST_F(FaultWritersTest, ReaderOfAnotherShapeGetsEqualBytesOrAMiss) {
  ASSERT_NO_FATAL_FAILURE(StartNode("1s"));
  const std::vector<format::PartRect> rects = WriterRects();
  uint64_t complete = 0, missed = 0, incomplete = 0, reader_bytes = 0;
  for (uint32_t round = 0; round < Rounds(5); ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    std::vector<std::unique_ptr<Loader>> writers, readers;
    for (const format::PartRect& rect : rects) writers.push_back(Start("writer", rect, 0));
    for (const format::PartRect& rect : kReaderRects) readers.push_back(Start("reader", rect, 0));
    ASSERT_FALSE(HasFailure());
    // Not a wait for something: the moment of death is what is random.
    std::this_thread::sleep_for(milliseconds(random_() % 100));
    writers[random_() % writers.size()]->process().Kill();
    ReadAll(&complete, &missed, &incomplete);
    ASSERT_FALSE(HasFailure());
    for (auto& list : {&writers, &readers}) {
      for (auto& loader : *list) {
        if (!loader->process().running()) continue;
        const Result<std::string> report = loader->Finish();
        ASSERT_TRUE(report.ok()) << ToString(report.status());
        reader_bytes += Counter(*report, "served_bytes");
      }
    }
    EXPECT_EQ(StillHeld(*client_, 1, seconds(120)), "");
    EXPECT_TRUE(WaitUntil([&] { return client_->Stat()->incomplete_blocks == 0; }, seconds(120)))
        << Describe(*client_->Stat());
    EXPECT_EQ(UsageMismatch(*client_, PartSizes(), seconds(120)), "");
    EXPECT_EQ(LeftAfterDrop(*node_, *client_, options_.tenant, seconds(120)), "");
    // The namespace went with the tenant.
    ASSERT_TRUE(client_->OpenNamespace(model_->spec()).ok());
  }
  std::printf(
      "blocks %llu whole, %llu missed (%llu prompts stopped at an incomplete one); %.1f MiB "
      "verified here, %.1f MiB by readers\n",
      static_cast<unsigned long long>(complete), static_cast<unsigned long long>(missed),
      static_cast<unsigned long long>(incomplete), static_cast<double>(verified_bytes_) / 1048576,
      static_cast<double>(reader_bytes) / 1048576);
  EXPECT_GT(complete, 0u) << "nobody read anything";
  EXPECT_GT(incomplete, 0u) << "the dead writer was not missed";
}

// Parts that are written after others expired, and by a writer that came back, make whole blocks
// again.
TEST_F(FaultWritersTest, WritersThatComeBackMakeBlocksWhole) {
  // Longer than all prompts take to be written once, on a busy machine too: what is whole in the
  // end must not have expired before.
  ASSERT_NO_FATAL_FAILURE(StartNode("4s"));
  const std::vector<format::PartRect> rects = WriterRects();
  std::vector<std::vector<BlockKey>> prompts;
  for (uint64_t prompt = 0; prompt < 20; ++prompt) prompts.push_back(model_->MakePrompt(prompt));
  const auto write = [&](const format::PartRect& rect) {
    for (const auto& keys : prompts) {
      const WriteOutcome outcome = Write(*client_, *model_, keys, 0, rect);
      ASSERT_TRUE(outcome.status.ok() && outcome.refused_parts == 0)
          << ToString(outcome.status) << ToString(outcome.refused);
    }
  };
  const auto expect = [&](bool whole) {
    for (const auto& keys : prompts) {
      const ReadOutcome outcome = Read(*client_, *model_, keys);
      ASSERT_TRUE(outcome.status.ok()) << ToString(outcome.status);
      EXPECT_TRUE(outcome.wrong.empty()) << outcome.wrong.front();
      EXPECT_EQ(outcome.complete_blocks, whole ? keys.size() : 0);
    }
  };
  for (size_t i = 0; i + 1 < rects.size(); ++i) write(rects[i]);
  expect(false);
  EXPECT_GT(client_->Stat()->incomplete_blocks, 0u);
  ASSERT_TRUE(WaitUntil([&] { return client_->Stat()->incomplete_blocks == 0; }, seconds(120)));
  // Their room is given back just after they are gone.
  EXPECT_TRUE(
      WaitUntil([&] { return Tier(*client_->Stat(), client::TierKind::kHost)->used_bytes == 0; },
                seconds(120)))
      << "expired parts still take room";
  write(rects.back());
  expect(false);
  for (const format::PartRect& rect : rects) write(rect);
  expect(true);
  EXPECT_EQ(client_->Stat()->incomplete_blocks, 0u);
  EXPECT_EQ(UsageMismatch(*client_, PartSizes(), seconds(120)), "");
}

}  // namespace
}  // namespace cairn::fault
