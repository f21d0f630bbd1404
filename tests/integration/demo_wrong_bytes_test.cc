// Wrong numbers under a valid checksum: no hash can see them, so the comparison of answers must.
//
// Before the demo's workers ask anything, another client stores blocks of random numbers under the
// first keys of the demo's prompt. The demo must then say that answers differ, and fail.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "cairn/client/connect.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "tests/integration/cli_support.h"
#include "tests/integration/demo_support.h"
#include "tools/cairn/demo/texts.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kPoisonedBlocks = 2;

// A sealed part of one block: random binary16 numbers of the size that keys and values have.
std::vector<std::byte> RandomPart(const Layout& layout, std::mt19937& random) {
  std::vector<uint64_t> lengths;
  for (uint32_t layer = 0; layer < layout.Layers(); ++layer) {
    lengths.push_back(layout.SliceBytes(layer, 0, layout.KvHeads()));
  }
  std::vector<std::byte> part(format::PartBytes(lengths));
  for (size_t at = format::HeaderBytes(static_cast<uint32_t>(lengths.size()));
       at + 2 <= part.size(); at += 2) {
    // Sign, exponent of [1, 2), random mantissa.
    const auto number = static_cast<uint16_t>(0x3c00u | (random() & 0x83ffu));
    std::memcpy(&part[at], &number, sizeof(number));
  }
  format::SealPart(part, format::Codec::kRaw, layout.WholeRect(),
                   static_cast<uint16_t>(layout.block_tokens), lengths);
  return part;
}

void Poison(const CacheNode& node, const std::string& document) {
  const client::NamespaceInfo ns = NamespaceOfWorkers(node.address());
  const auto texts = cli::TextsWithDocument(document);
  ASSERT_TRUE(texts.ok()) << texts.status();
  const std::vector<int32_t> tokens =
      TinyTokenizer().Tokens({{"system", texts->shared_system}, {"user", texts->questions[0]}});
  ASSERT_GT(tokens.size(), kPoisonedBlocks * ns.spec.layout.block_tokens);
  BlockKeyChain chain(ns.fingerprint);
  const std::vector<BlockKey> keys = chain.Keys(tokens, ns.spec.layout.block_tokens);

  client::ConnectOptions options;
  options.address = node.address();
  const auto client = client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  const auto opened =
      (*client)->OpenNamespace(ns.spec, {.deadline = std::chrono::seconds(60), .trace = ""});
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_EQ(opened->fingerprint, ns.fingerprint);

  std::mt19937 random(20240607);
  std::vector<std::vector<std::byte>> bytes;
  std::vector<client::PartToPush> parts;
  for (uint32_t block = 0; block < kPoisonedBlocks; ++block) {
    bytes.push_back(RandomPart(ns.spec.layout, random));
    client::PartToPush part;
    part.key = keys[block];
    if (block > 0) part.parent = keys[block - 1];
    part.first_position = block * ns.spec.layout.block_tokens;
    part.rect = ns.spec.layout.WholeRect();
    part.bytes = bytes.back();
    parts.push_back(part);
  }
  const auto pushed = (*client)->Push(ns.fingerprint, parts, {});
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  for (const Status& status : *pushed) ASSERT_TRUE(status.ok()) << status;
}

TEST(DemoWrongBytesTest, TheDemoSeesThemAndFails) {
  const TemporaryDirectory directory;
  const std::string document = WriteSmallDocument(directory.path());
  const auto node = CacheNode::Start({});
  ASSERT_TRUE(node.ok()) << node.status();
  const std::vector<std::string> demo = {
      "demo",    "--model",         kTinyModel, "--document", document,         "--questions",
      "1",       "--turns",         "1",        "--out",      directory.path(), "--json",
      "--cache", (*node)->address()};

  ASSERT_NO_FATAL_FAILURE(Poison(**node, document));
  const CommandResult result = Cairn(demo);
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("ram/q1: the answer differs"));
  bool compared = false;
  const auto report = result.Json();
  for (const auto& row : report["rows"]) {
    if (row["name"] != "ram/q1" && row["name"] != "other/q1") continue;
    compared = true;
    EXPECT_EQ(row["identical"], false) << row;
    EXPECT_GT(row["fetched_tokens"], 0) << "the wrong bytes were not even used";
  }
  EXPECT_TRUE(compared);
}

// The counter-check: the same run on a node that nobody poisoned.
TEST(DemoWrongBytesTest, WithoutThemTheSameRunIsIdentical) {
  const TemporaryDirectory directory;
  const std::string document = WriteSmallDocument(directory.path());
  const auto node = CacheNode::Start({});
  ASSERT_TRUE(node.ok()) << node.status();
  const CommandResult result =
      Cairn({"demo", "--model", kTinyModel, "--document", document, "--questions", "1", "--turns",
             "1", "--out", directory.path(), "--json", "--cache", (*node)->address()});
  EXPECT_EQ(result.code, 0) << result.err;
}

}  // namespace
}  // namespace cairn::testing
