#include "tests/integration/demo_support.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cairn/client/connect.h"
#include "services/cache/cluster/directory/waymarks.h"
#include "tests/integration/cli_support.h"
#include "tools/cairn/demo/texts.h"

namespace cairn::testing {
namespace {

// Whether the blocks that both prompts begin with have a waymark.
bool ShareAWaymark(const client::NamespaceInfo& ns, const std::vector<int32_t>& a,
                   const std::vector<int32_t>& b) {
  const auto differ = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  const uint32_t block_tokens = ns.spec.layout.block_tokens;
  BlockKeyChain chain(ns.fingerprint);
  const std::vector<BlockKey> keys = chain.Keys({a.begin(), differ.first}, block_tokens);
  return !cache::WaymarksOf(ns.fingerprint, keys, block_tokens).empty();
}

}  // namespace

client::NamespaceInfo NamespaceOfWorkers(const std::string& address) {
  const CommandResult first = Cairn(
      {"generate", "--model", kTinyModel, "--cache", address, "--max-tokens", "1", "--json",
       "--prompt", "Long enough for one full block of sixty-four tokens: stones, stones, stones."});
  EXPECT_EQ(first.code, 0) << first.err;
  client::ConnectOptions options;
  options.address = address;
  auto admin = client::ConnectAdmin(options);
  EXPECT_TRUE(admin.ok()) << admin.status();
  const auto namespaces =
      (*admin)->ListNamespaces("", {.deadline = std::chrono::seconds(60), .trace = ""});
  EXPECT_TRUE(namespaces.ok()) << namespaces.status();
  EXPECT_EQ(namespaces->size(), 1u);
  return namespaces->at(0);
}

TinyTokenizer::TinyTokenizer() {
  auto model = model::Model::Load(kTinyModel);
  EXPECT_TRUE(model.ok()) << model.status();
  model_ = *std::move(model);
}

std::vector<int32_t> TinyTokenizer::Tokens(const std::vector<model::ChatMessage>& messages) const {
  const auto chat_template = model_->chat_template();
  EXPECT_TRUE(chat_template.ok()) << chat_template.status();
  const auto pieces = (*chat_template)->Render(messages, /*add_generation_prompt=*/true);
  EXPECT_TRUE(pieces.ok()) << pieces.status();
  const auto tokens = model_->tokenizer().EncodePrompt(*pieces);
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  return {tokens->begin(), tokens->end()};
}

std::string WriteDocumentWithWaymarks(const std::string& directory) {
  const auto node = CacheNode::Start({});
  EXPECT_TRUE(node.ok()) << node.status();
  const client::NamespaceInfo ns = NamespaceOfWorkers((*node)->address());
  const TinyTokenizer tokenizer;
  const std::string path = WriteSmallDocument(directory);
  const std::string text = ReadFile(path);
  for (int copy = 0; copy < 10'000; ++copy) {
    std::ofstream(path) << "Copy " << copy << ". " << text;
    const auto texts = cli::TextsWithDocument(path);
    EXPECT_TRUE(texts.ok()) << texts.status();
    const auto both_share = [&](const std::string& system) {
      return ShareAWaymark(ns, tokenizer.Tokens({{"system", system}, {"user", "a"}}),
                           tokenizer.Tokens({{"system", system}, {"user", "b"}}));
    };
    if (both_share(texts->shared_system) && both_share(texts->chat_system)) return path;
  }
  ADD_FAILURE() << "no document has waymarks";
  return path;
}

}  // namespace cairn::testing
