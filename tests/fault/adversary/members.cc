// What clients of one node can do to a cluster, and to others' blocks on disk.

#include <grpcpp/create_channel.h>

#include <algorithm>
#include <functional>

#include "cairn/v1/cluster.grpc.pb.h"
#include "cairn/v1/peer.grpc.pb.h"
#include "tests/fault/adversary/honest_blocks.h"
#include "tests/fault/adversary/recipes.h"
#include "tests/fault/adversary/wire_client.h"

namespace cairn::fault {
namespace {

constexpr uint64_t kBigBlocks = 300;         // Of 1 MiB each: more than a node has in host.
constexpr uint32_t kLongestLease = 600'000;  // Milliseconds.

std::string RandomText(Scene& scene, size_t characters) {
  std::string text(characters, 'x');
  for (char& letter : text) letter = static_cast<char>('a' + scene.random() % 26);
  return text;
}

// Fingerprint and keys of a prompt that honest clients have.
struct HonestPrompt {
  std::string fingerprint = {}, keys = {};
};
HonestPrompt PromptOfHonest(Scene& scene) {
  for (const HonestLoad* load : scene.honest) {
    const HonestBlocks* const blocks = load->client().blocks();
    if (blocks == nullptr) continue;
    HonestPrompt prompt{.fingerprint = std::string(blocks->model().fingerprint().View())};
    const uint64_t newest = std::max<uint64_t>(blocks->next_prompt(), 1);
    for (const BlockKey& key : blocks->model().MakePrompt(scene.random() % newest)) {
      prompt.keys += key.View();
    }
    return prompt;
  }
  return {.fingerprint = std::string(32, 'f'), .keys = KeyOf("none", 1)};
}

v1::MatchRequest MatchOf(const WireClient& client, const HonestPrompt& prompt) {
  v1::MatchRequest request;
  request.set_session_id(client.session());
  request.set_fingerprint(prompt.fingerprint);
  request.set_keys(prompt.keys);
  request.set_no_lease(true);
  return request;
}

std::shared_ptr<grpc::Channel> ChannelAlone(const TestedServer& server) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(server.address(), grpc::InsecureChannelCredentials(), arguments);
}

// Stores the blocks, and waits until the disk has what it can take. Keys of those that are there.
std::string StoreBig(Scene& scene, WireClient& client, const std::string& ns,
                     const std::string& tag, const std::function<PartToStore(uint64_t)>& block) {
  for (uint64_t i = 0; i < kBigBlocks && scene.going(); i += 10) {
    std::vector<PartToStore> parts;
    for (uint64_t n = i; n < i + 10; ++n) parts.push_back(block(n));
    client.Store(ns, parts);
    if (i % 50 == 0) (void)client.Flush();
  }
  (void)client.Flush();
  std::string keys;
  for (uint64_t i = 0; i < kBigBlocks; ++i) keys += KeyOf(tag, i);
  return keys;
}

}  // namespace

void MadeUpHolders(Scene& scene) {
  WireClient client(scene.node.address(), scene.stop);
  for (int i = 0; i < 2000 && scene.going(); ++i) {
    v1::MatchRequest request = MatchOf(client, PromptOfHonest(scene));
    for (int n = 0; n < 4; ++n) request.add_holders(RandomText(scene, 128));
    CallContext context(scene.stop);
    v1::MatchResponse response;
    (void)client.cache().Match(context.get(), request, &response);
  }
}

void HastyMatches(Scene& scene) {
  WireClient client(scene.node.address(), scene.stop);
  const auto cluster = v1::Cluster::NewStub(ChannelAlone(scene.node));
  for (int i = 0; i < 500 && scene.going(); ++i) {
    const HonestPrompt prompt = PromptOfHonest(scene);
    v1::MatchRequest request = MatchOf(client, prompt);
    for (const char* node : {"node-0", "node-1", "node-2"}) request.add_holders(node);
    CallContext hasty(scene.stop, std::chrono::microseconds(scene.Between(500, 5000)));
    v1::MatchResponse response;
    (void)client.cache().Match(hasty.get(), request, &response);

    v1::LocateRequest locate;
    v1::LocateResponse located;
    locate.set_fingerprint(prompt.fingerprint);
    locate.set_keys(prompt.keys);
    locate.set_timeout_ms(1);
    CallContext context(scene.stop);
    (void)cluster->Locate(context.get(), locate, &located);
  }
  v1::MembersResponse members;
  CallContext context(scene.stop);
  if (!cluster->Members(context.get(), {}, &members).ok()) return;
  const auto skipped = std::count_if(members.members().begin(), members.members().end(),
                                     [](const auto& member) { return member.skipped(); });
  scene.Note(fmt::format("{} of {} members are skipped", skipped, members.members_size()));
}

void LocateFloods(Scene& scene) {
  v1::LocateRequest request;
  request.set_fingerprint(PromptOfHonest(scene).fingerprint);
  for (uint64_t i = 0; i < 65'536; ++i) *request.mutable_keys() += KeyOf("nowhere", i);
  std::vector<std::jthread> callers;
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&] {
      const auto cluster = v1::Cluster::NewStub(ChannelAlone(scene.node));
      for (int pass = 0; pass < 20 && scene.going(); ++pass) {
        CallContext context(scene.stop);
        v1::LocateResponse response;
        (void)cluster->Locate(context.get(), request, &response);
      }
    });
  }
}

void MemberLies(Scene& scene) {
  const auto peer = v1::Peer::NewStub(ChannelAlone(scene.node));
  const auto cluster = v1::Cluster::NewStub(ChannelAlone(scene.node));
  const HonestPrompt prompt = PromptOfHonest(scene);
  for (int i = 0; i < 200 && scene.going(); ++i) {
    v1::PeerCaller caller;
    caller.set_cluster(i % 2 == 0 ? "cairn" : RandomText(scene, 64));
    caller.set_node_id(i % 3 == 0 ? "node-1" : RandomText(scene, 128));
    caller.set_incarnation(scene.random());
    v1::HelloRequest hello;
    v1::HelloResponse answer;
    *hello.mutable_caller() = caller;
    hello.set_epoch(scene.random());
    hello.set_newest_version(scene.random() % 2 == 0 ? 2 : UINT32_MAX);
    hello.set_address("127.0.0.1:1");
    CallContext first(scene.stop, std::chrono::seconds(5));
    (void)peer->Hello(first.get(), hello, &answer);

    v1::AnnounceRequest announce;
    v1::AnnounceResponse announced;
    *announce.mutable_caller() = caller;
    announce.set_sequence(1);
    announce.set_begins(true);
    announce.set_complete(true);
    for (int n = 0; n < 4096; ++n) announce.add_memory_adds(scene.random());
    CallContext second(scene.stop, std::chrono::seconds(5));
    (void)peer->Announce(second.get(), announce, &announced);

    v1::PeerMatchRequest match;
    v1::PeerMatchResponse matched;
    *match.mutable_caller() = caller;
    match.set_fingerprint(prompt.fingerprint);
    match.set_keys(prompt.keys);
    CallContext third(scene.stop, std::chrono::seconds(5));
    (void)peer->Match(third.get(), match, &matched);

    v1::BumpPage page, next;
    *page.mutable_caller() = caller;
    for (int n = 0; n < 100; ++n) {
      page.add_bumps()->set_fingerprint(RandomText(scene, 32));
      page.mutable_bumps(n)->set_id(RandomText(scene, 16));
    }
    CallContext fourth(scene.stop, std::chrono::seconds(5));
    (void)peer->ExchangeBumps(fourth.get(), page, &next);
  }
  v1::MembersResponse members;
  CallContext context(scene.stop);
  if (!cluster->Members(context.get(), {}, &members).ok()) return;
  scene.Expect(
      members.members_size() <= 2,
      fmt::format("made-up members: the node sees {}, expected at most 2", members.members_size()));
}

void ShortLives(Scene& scene) {
  WireClient owner(scene.node.address(), scene.stop), other(scene.node.address(), scene.stop);
  const v1::NamespaceSpec spec = OpaqueSpec(scene.Tenant("life"));
  const std::string ns = owner.Open(spec);
  if (ns.empty()) return;  // No place for a namespace.
  const std::string key = KeyOf("life", 1);
  const std::vector<int> stored =
      owner.Store(ns, {{key, OpaquePart(std::string(1000, 'l')), RectOf(0, 1, 0, 1), ""}});
  if (stored[0] != 0) return scene.Note("not stored: " + owner.last_refusal());
  v1::OpenNamespaceRequest request;
  *request.mutable_spec() = spec;
  request.set_block_life_ms(1000);
  for (int i = 0; i < 20 && scene.going(); ++i) {
    CallContext context(scene.stop);
    v1::OpenNamespaceResponse response;
    (void)other.cache().OpenNamespace(context.get(), request, &response);
  }
  v1::MatchResponse lease;
  const bool kept = owner.Match(ns, key, kLongestLease, &lease).ok() && lease.lease_id() != 0;
  if (!scene.Spend(milliseconds(1300))) return;
  // Under a lease it cannot be evicted, but it would not be served at the end of its life.
  scene.Expect(!kept || owner.Matched(ns, key) == 1,
               "a stranger ended the life of a block by opening its namespace");
}

void DiskRows(Scene& scene) {
  constexpr uint32_t kHeads = 8, kDim = 64, kLayers = 64, kTokens = 16;
  constexpr size_t kRowBytes = kDim * 2;
  WireClient client(scene.node.address(), scene.stop);
  v1::NamespaceSpec spec = NativeSpec(scene.Tenant("rows"), "1", kHeads, kTokens, "raw");
  AddGroup(&spec, kLayers, {PlaneOf("k", kHeads, kDim, v1::DTYPE_F16)});
  const std::string ns = client.Open(spec);
  const v1::PartRect rect = RectOf(0, kLayers, 0, kHeads);
  const auto mark = [](uint64_t block) { return static_cast<char>('a' + block % 26); };
  const std::string keys = StoreBig(scene, client, ns, "rows", [&](uint64_t n) {
    const std::string slice(kHeads * kTokens * kRowBytes, mark(n));
    return PartToStore{KeyOf("rows", n),
                       SealedPart(std::vector<std::string>(kLayers, slice), 0, rect), rect,
                       n == 0 ? "" : KeyOf("rows", n - 1)};
  });
  v1::MatchResponse match;
  if (!client.Match(ns, keys, 60'000, &match).ok() || match.matched_blocks() == 0) return;
  uint64_t wrong = 0, came = 0;
  for (uint32_t layer = 0; layer < kLayers && scene.going(); ++layer) {
    v1::FetchRequest request;
    request.set_session_id(client.session());
    request.set_lease_id(match.lease_id());
    request.set_layer_begin(layer);
    request.set_layer_end(layer + 1);
    for (uint32_t block = 0; block < match.matched_blocks(); ++block) {
      v1::RowGroup& group = *request.add_rows();
      group.set_block(block);
      group.set_head(block % kHeads);
      group.add_mask(1);
    }
    CallContext context(scene.stop);
    const auto reader = client.cache().Fetch(context.get(), request);
    v1::FetchFrame frame;
    while (reader->Read(&frame)) {
      for (const v1::Rows& rows : frame.rows()) {
        ++came;
        if (rows.data() != std::string(kRowBytes, mark(rows.block()))) ++wrong;
      }
    }
    reader->Finish();
  }
  scene.Note(fmt::format("{} rows of {} blocks came", came, match.matched_blocks()));
  scene.Expect(wrong == 0, fmt::format("{} of {} rows from disk are wrong", wrong, came));
}

void DiskLeases(Scene& scene) {
  WireClient client(scene.node.address(), scene.stop), other(scene.node.address(), scene.stop);
  const std::string ns = client.Open(OpaqueSpec(scene.Tenant("lease")));
  const std::string keys = StoreBig(scene, client, ns, "lease", [&](uint64_t n) {
    return PartToStore{KeyOf("lease", n), OpaquePart(std::string(1 << 20, 'l')), RectOf(0, 1, 0, 1),
                       n == 0 ? "" : KeyOf("lease", n - 1)};
  });
  v1::MatchResponse match;
  (void)client.Match(ns, keys, kLongestLease, &match);
  scene.Note(fmt::format("a lease on {} blocks of 1 MiB", match.matched_blocks()));
  // Honest clients go on storing, which their own figures show.
  scene.Spend(std::chrono::seconds(3));
  if (match.lease_id() != 0 && scene.random() % 2 == 0) client.Release(match.lease_id());
}

}  // namespace cairn::fault
