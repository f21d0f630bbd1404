// Tests code that uses a cache, without a node: InMemoryCacheClient is both ends, and fails on
// demand.
//
//   without_a_node

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "cairn/client/next_action.h"
#include "cairn/client/testing/in_memory_cache_client.h"

namespace client = cairn::client;
using client::testing::InMemoryCacheClient;

cairn::NamespaceSpec Spec() {
  cairn::NamespaceSpec spec;
  spec.model = "my-model";
  spec.revision = "sha256:0123";
  spec.numerics = "my-engine-1";
  spec.layout.block_tokens = 16;
  spec.layout.form = cairn::OpaqueLayout{.description = "test", .max_part_bytes = 4096, .parts = 1};
  return spec;
}

// The code under test: the number of blocks that need not be computed.
uint32_t BlocksToSkip(client::CacheClient& node, const std::vector<cairn::BlockKey>& keys) {
  const auto match = node.Match(cairn::Fingerprint(Spec()), keys, {.lease = false});
  if (match.ok()) return match->matched_blocks;
  switch (client::NextAction(match.status().code())) {
    case client::Action::kFixRequest:
      std::fprintf(stderr, "a bug of ours: %s\n", cairn::ToString(match.status()).c_str());
      break;
    default:  // A miss. The client reconnects by itself, and its circuit breaker saves time.
      break;
  }
  return 0;
}

bool Expect(const char* what, uint32_t got, uint32_t expected) {
  std::printf("%s: %u blocks, expected %u\n", what, got, expected);
  return got == expected;
}

int main() {
  InMemoryCacheClient node;
  const cairn::NamespaceSpec spec = Spec();
  if (!node.OpenNamespace(spec).ok()) return 1;
  const std::vector<int32_t> tokens(32, 1);
  const std::vector<cairn::BlockKey> keys =
      cairn::BlockKeyChain(cairn::Fingerprint(spec)).Keys(tokens, spec.layout.block_tokens);

  std::vector<std::byte> part(cairn::format::PartBytes(std::vector<uint64_t>{4096}));
  cairn::format::SealPart(part, cairn::format::Codec::kOpaque, spec.layout.WholeRect(), 16,
                          std::vector<uint64_t>{4096});
  client::PartToPush push;
  push.key = keys[0];
  push.rect = spec.layout.WholeRect();
  push.bytes = part;
  if (!node.Push(cairn::Fingerprint(spec), {&push, 1}, {}).ok()) return 1;
  bool good = Expect("the first block is stored", BlocksToSkip(node, keys), 1);

  node.SetFaults({.every_call = cairn::Errorf(cairn::StatusCode::kUnavailable, "node is away")});
  good = Expect("the node is away", BlocksToSkip(node, keys), 0) && good;

  node.SetFaults({.hang = true});
  good = Expect("the node hangs", BlocksToSkip(node, keys), 0) && good;

  node.SetFaults({});
  good = Expect("the node is back", BlocksToSkip(node, keys), 1) && good;
  return good ? 0 : 1;
}
