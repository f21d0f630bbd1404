#include "services/router/engine/prompt_holders.h"

#include <gtest/gtest.h>

namespace cairn::router {
namespace {

using Kind = client::MemberEvent::Kind;

constexpr uint32_t kBlock = 64;

class PromptHoldersTest : public ::testing::Test {
 protected:
  // A worker that reads from `node`; empty: from none.
  void Add(const std::string& address, const std::string& node,
           WorkerCondition condition = WorkerCondition::kReady, uint32_t block_tokens = kBlock) {
    RegisteredWorker& worker = workers_.emplace_back();
    worker.address = address;
    worker.condition = condition;
    WorkerInfo info;
    info.block_tokens = block_tokens;
    info.fingerprint = space_;
    worker.info = std::make_shared<WorkerInfo>(info);
    WorkerReport report;
    report.cache_node_id = node;
    worker.report = std::make_shared<WorkerReport>(report);
  }
  void Store(const std::string& node, size_t blocks, TierKind tier) {
    for (size_t i = 0; i < blocks; ++i) {
      client::MemberEvent event;
      event.node_id = node;
      event.kind = Kind::kEvent;
      event.event = {.kind = CacheEvent::Kind::kTierAdded,
                     .fingerprint = space_,
                     .key = keys_[i],
                     .tier = tier};
      index_.Apply(event);
    }
  }
  std::vector<PromptHolder> Find(HoldersQuery query) {
    auto found = FindHolders(workers_, query, &index_);
    if (const auto* error = std::get_if<GenerateError>(&found)) {
      ADD_FAILURE() << Message(error->status);
      return {};
    }
    return std::get<std::vector<PromptHolder>>(found);
  }
  HoldersQuery Query(const std::string& holder = "") {
    return {.prompt = tokens_, .block_tokens = kBlock, .holder = holder};
  }

  const Digest space_ = Sha256::Of("namespace");
  const std::vector<model::TokenId> tokens_ = std::vector<model::TokenId>(300, 7);
  const std::vector<BlockKey> keys_ = BlockKeyChain(space_).Keys(tokens_, kBlock);
  std::vector<RegisteredWorker> workers_;
  PrefixIndex index_{{}};
};

TEST_F(PromptHoldersTest, AWorkerHasWhatItsNodeHolds) {
  Add("w:1", "a");
  Add("w:2", "b");
  Add("w:3", "");
  Store("a", 2, TierKind::kHost);
  Store("b", 3, TierKind::kDisk);
  Store("b", 1, TierKind::kHost);
  const auto found = Find(Query());
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].id, "w:2");
  EXPECT_EQ(found[0].tokens, 192u);
  EXPECT_EQ(found[0].host_tokens, 64u);
  EXPECT_EQ(found[0].disk_tokens, 192u);
  EXPECT_EQ(found[1].id, "w:1");
  EXPECT_EQ(found[1].tokens, 128u);
  EXPECT_EQ(found[1].device_tokens, 0u);
}

TEST_F(PromptHoldersTest, WhatWasSentToAWorkerWithoutEventsIsInItsOwnMemory) {
  Add("w:1", "");
  index_.Sent("w:1", space_, keys_);
  const auto found = Find(Query());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].tokens, 256u);
  EXPECT_EQ(found[0].device_tokens, 256u);
  EXPECT_EQ(found[0].host_tokens, 0u);
}

TEST_F(PromptHoldersTest, KeysFindWhatTheirTokensFind) {
  Add("w:1", "a");
  Store("a", 2, TierKind::kHost);
  HoldersQuery query = Query();
  query.prompt = keys_;
  const auto found = Find(query);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].tokens, 128u);
}

TEST_F(PromptHoldersTest, OneHolderMayBeAskedFor) {
  Add("w:1", "a");
  Add("w:2", "b", WorkerCondition::kDraining);
  Store("a", 2, TierKind::kHost);
  Store("b", 1, TierKind::kHost);
  // Only workers that take requests, unless one is named.
  EXPECT_EQ(Find(Query()).size(), 1u);
  ASSERT_EQ(Find(Query("w:2")).size(), 1u);
  EXPECT_EQ(Find(Query("w:2"))[0].tokens, 64u);
  ASSERT_EQ(Find(Query("b")).size(), 1u);
  EXPECT_EQ(Find(Query("b"))[0].id, "b");
}

TEST_F(PromptHoldersTest, AHolderThatNobodyKnowsIsAnError) {
  Add("w:1", "a");
  Add("w:2", "b");
  Store("c", 1, TierKind::kHost);  // A node that no worker uses.
  EXPECT_TRUE(Find(Query("w:1")).empty());
  EXPECT_TRUE(Find(Query("b")).empty()) << "it holds nothing";
  EXPECT_EQ(Find(Query("c")).size(), 1u);
  const auto found = FindHolders(workers_, Query("d"), &index_);
  ASSERT_TRUE(std::holds_alternative<GenerateError>(found));
  const auto& error = std::get<GenerateError>(found);
  EXPECT_EQ(error.field, "instance_id");
  EXPECT_EQ(error.status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(error.status), ::testing::HasSubstr("got 'd'"));
}

TEST_F(PromptHoldersTest, ABlockSizeThatNobodyHasIsAnError) {
  auto found = FindHolders(workers_, Query(), &index_);
  ASSERT_TRUE(std::holds_alternative<GenerateError>(found));
  EXPECT_EQ(std::get<GenerateError>(found).status.code(), StatusCode::kUnavailable);
  Add("w:1", "a", WorkerCondition::kReady, 16);
  Add("w:2", "a", WorkerCondition::kReady, 32);
  found = FindHolders(workers_, Query(), &index_);
  ASSERT_TRUE(std::holds_alternative<GenerateError>(found));
  const auto& error = std::get<GenerateError>(found);
  EXPECT_EQ(error.field, "block_size");
  EXPECT_EQ(
      Message(error.status),
      "field 'block_size': got 64, expected 16 or 32, the workers' own (of engines the setting "
      "engines.block_tokens)");
}

}  // namespace
}  // namespace cairn::router
