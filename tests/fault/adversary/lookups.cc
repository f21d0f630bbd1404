// Lookups, leases and hints.

#include "tests/fault/adversary/recipes.h"
#include "tests/fault/adversary/wire_client.h"

namespace cairn::fault {
namespace {

constexpr uint64_t kMostKeys = 65536;

std::string Repeat(const std::string& key, uint64_t times) {
  std::string keys;
  keys.reserve(key.size() * times);
  for (uint64_t i = 0; i < times; ++i) keys += key;
  return keys;
}

PartToStore SmallBlock(const std::string& key, const std::string& parent = "", size_t bytes = 100) {
  return {key, OpaquePart(std::string(bytes, 'x')), RectOf(0, 1, 0, 1), parent};
}

}  // namespace

void DuplicateKeys(Scene& scene) {
  WireClient client(scene.node.address(), scene.stop);
  const std::string tenant = scene.Tenant("same");
  const std::string ns = client.Open(OpaqueSpec(tenant));
  const std::string key = KeyOf("same", 1);
  client.Store(ns, {SmallBlock(key)});
  const uint64_t before = client.Stat().index_bytes();
  const std::string keys = Repeat(key, kMostKeys);
  std::vector<uint64_t> leases;
  for (int i = 0; i < 24 && scene.going(); ++i) {
    v1::MatchResponse response;
    if (client.Match(ns, keys, 600'000, &response).ok() && response.lease_id() != 0) {
      leases.push_back(response.lease_id());
    }
  }
  // Some are released, the others end with the session.
  for (size_t i = 0; i < leases.size() / 2 && scene.going(); ++i) client.Release(leases[i]);
  client.Close();
  WireClient other(scene.node.address(), scene.stop);
  const uint64_t after = other.Stat().index_bytes();
  scene.Note(
      fmt::format("{} leases; index {} -> {} KiB", leases.size(), before >> 10, after >> 10));
  scene.Expect(after > 0, "the node does not answer after leases over one key");
  scene.Expect(after < before + (8 << 20),
               "the index keeps megabytes for leases over one key that have ended");
}

void HugeLookups(Scene& scene) {
  constexpr uint32_t kLayers = 65535;
  WireClient client(scene.node.address(), scene.stop);
  v1::NamespaceSpec spec = NativeSpec(scene.Tenant("huge"), "1", 1, 16, "raw");
  AddGroup(&spec, 1, {PlaneOf("k", 1, 1, v1::DTYPE_I8)});
  AddGroup(&spec, kLayers - 1, {});
  const std::string ns = client.Open(spec);
  if (ns.empty()) return;  // Refused: as good an answer as any.
  std::vector<std::string> slices(kLayers);
  slices[0] = std::string(16, 'x');
  const v1::PartRect rect = RectOf(0, kLayers, 0, 1);
  const std::string key = KeyOf("huge", 1);
  client.Store(ns, {{key, SealedPart(slices, 0, rect), rect, ""}});
  v1::FetchRequest request;
  request.set_session_id(client.session());
  request.mutable_lookup()->set_fingerprint(ns);
  request.mutable_lookup()->set_keys(Repeat(key, scene.Between(2000, kMostKeys)));
  CallContext context(scene.stop, std::chrono::seconds(5));
  auto reader = client.cache().Fetch(context.get(), request);
  v1::FetchFrame frame;
  while (reader->Read(&frame)) {
  }
  reader->Finish();
}

void RowFloods(Scene& scene) {
  constexpr uint32_t kBlocks = 64, kHeads = 32, kDim = 32;
  constexpr size_t kRowBytes = kDim * 2;
  WireClient client(scene.node.address(), scene.stop);
  v1::NamespaceSpec spec = NativeSpec(scene.Tenant("rows"), "1", kHeads, 16, "raw");
  AddGroup(&spec, 2, {PlaneOf("k", kHeads, kDim, v1::DTYPE_F16)});
  const std::string ns = client.Open(spec);
  const v1::PartRect rect = RectOf(0, 2, 0, kHeads);
  std::string keys;
  for (uint32_t block = 0; block < kBlocks; ++block) {
    // Each row says where it is from.
    std::string slice;
    for (uint32_t row = 0; row < kHeads * 16; ++row) {
      slice += std::string(kRowBytes, static_cast<char>(block * 7 + row));
    }
    const std::string parent = block == 0 ? "" : KeyOf("rows", block - 1);
    client.Store(ns, {{KeyOf("rows", block), SealedPart({slice, slice}, 0, rect), rect, parent}});
    keys += KeyOf("rows", block);
  }
  v1::MatchResponse match;
  if (!client.Match(ns, keys, 60'000, &match).ok() || match.matched_blocks() == 0) return;
  for (int pass = 0; pass < 20 && scene.going(); ++pass) {
    v1::FetchRequest request;
    request.set_session_id(client.session());
    request.set_lease_id(match.lease_id());
    request.set_layer_begin(static_cast<uint32_t>(scene.Between(0, 2)));
    request.set_layer_end(request.layer_begin() + 1);
    // Every third is nonsense somewhere.
    const bool wild = pass % 3 == 0;
    for (uint32_t i = 0; i < 16384; ++i) {
      v1::RowGroup& group = *request.add_rows();
      group.set_block(wild ? static_cast<uint32_t>(scene.random()) : i / kHeads % kBlocks);
      group.set_head(i % kHeads);
      group.add_mask(scene.random() & 0xffff);
      if (!wild && i + 1 == match.matched_blocks() * kHeads) break;
    }
    CallContext context(scene.stop, std::chrono::seconds(5));
    auto reader = client.cache().Fetch(context.get(), request);
    v1::FetchFrame frame;
    bool right = true;
    while (reader->Read(&frame)) {
      for (const v1::Rows& rows : frame.rows()) {
        const uint64_t mask =
            request.rows(static_cast<int>(rows.block() * kHeads + rows.head())).mask(0);
        std::string expected;
        for (uint32_t token = 0; token < 16; ++token) {
          if ((mask >> token & 1) == 0) continue;
          expected += std::string(kRowBytes,
                                  static_cast<char>(rows.block() * 7 + rows.head() * 16 + token));
        }
        right = right && !wild && rows.data() == expected;
      }
      if (pass % 4 == 1) break;  // And leaves.
    }
    context.get()->TryCancel();
    reader->Finish();
    scene.Expect(right, "a fetch of rows brings other rows than were asked for");
  }
}

void PoolFloods(Scene& scene) {
  constexpr uint32_t kPools = 4, kUnits = 2000;
  WireClient client(scene.node.address(), scene.stop);
  v1::NamespaceSpec spec = OpaqueSpec(scene.Tenant("pools"));
  v1::OpaqueLayout& layout = *spec.mutable_layout()->mutable_opaque();
  layout.set_max_part_bytes(0);
  layout.set_parts(0);
  for (uint32_t p = 0; p < kPools; ++p) {
    v1::Pool& pool = *layout.add_pools();
    pool.set_name(fmt::format("p{}", p));
    pool.set_block_tokens(16);
    pool.set_parts(1);
    pool.set_max_part_bytes(1000);
    pool.set_chained(p < 2);
  }
  v1::NamespaceSpec many = spec;
  for (uint32_t p = kPools; p < 65536; ++p) {
    *many.mutable_layout()->mutable_opaque()->add_pools() = layout.pools(0);
  }
  scene.Expect(client.Open(many).empty(), "a namespace of 65,536 pools was opened");
  const std::string ns = client.Open(spec);
  if (ns.empty()) return;
  // Blocks under the keys of units, in any pool, after blocks of any pool.
  std::vector<PartToStore> parts;
  std::string keys;
  for (uint32_t i = 0; i < kUnits; ++i) {
    const auto pool = static_cast<uint32_t>(scene.Between(0, kPools - 1));
    const v1::PartRect rect = RectOf(pool, pool + 1, 0, 1);
    const std::string parent = i > 0 && pool < 2 ? KeyOf("pools", scene.Between(0, i)) : "";
    parts.push_back(
        {KeyOf("pools", i), SealedPart({std::string(100, 'x')}, 1, rect), rect, parent});
    keys += KeyOf("pools", i);
  }
  client.Store(ns, parts);
  // As long as a question can be, and a fifth of it twice.
  while (keys.size() < kMostKeys * 32) keys += KeyOf("pools", scene.Between(0, 10 * kUnits));
  for (int i = 0; i < 30 && scene.going(); ++i) {
    v1::MatchRequest request;
    request.set_session_id(client.session());
    request.set_fingerprint(ns);
    request.set_keys(keys.substr(0, 32 * scene.Between(1, kMostKeys)));
    request.set_no_lease(i % 3 == 0);
    request.set_announce(i % 5 == 1 && i % 3 != 0);
    v1::JointQuestion& joint = *request.mutable_joint();
    joint.set_step_tokens(i % 7 == 6 ? static_cast<uint32_t>(scene.random()) : 16);
    joint.set_all(i % 2 == 0);
    const uint32_t pools = i % 11 == 10 ? 65536 : kPools;
    for (uint32_t p = 0; p < pools; ++p) {
      v1::PoolNeed& need = *joint.add_pools();
      need.set_pool(i % 13 == 12 ? static_cast<uint32_t>(scene.random()) : p);
      const uint32_t tails[] = {0, 1, 500, UINT32_MAX};
      need.set_tail_tokens(tails[scene.Between(0, 3)]);
      need.set_proof_blocks(static_cast<uint32_t>(scene.Between(0, 16)));
    }
    v1::MatchResponse response;
    CallContext context(scene.stop);
    if (!client.cache().Match(context.get(), request, &response).ok()) continue;
    uint64_t blocks = 0;
    for (const v1::PoolRun& run : response.joint().pool_runs()) blocks += run.blocks();
    scene.Expect(blocks == response.matched_blocks(),
                 "a match over pools leases other blocks than it tells");
    if (response.lease_id() != 0 && i % 2 == 0) client.Release(response.lease_id());
  }
}

void CollidingKeys(Scene& scene) {
  WireClient client(scene.node.address(), scene.stop);
  const std::string ns = client.Open(OpaqueSpec(scene.Tenant("collide")));
  uint64_t number = 0;
  for (int batch = 0; batch < 6 && scene.going(); ++batch) {
    std::vector<PartToStore> parts;
    for (int i = 0; i < 1000; ++i) parts.push_back(SmallBlock(CollidingKey(number++)));
    client.Store(ns, parts);
  }
  std::string keys;
  for (uint64_t i = 0; i < kMostKeys; ++i) keys += CollidingKey(1'000'000 + i);
  v1::ExistsRequest request;
  v1::ExistsResponse response;
  request.set_fingerprint(ns);
  request.set_keys(keys);
  CallContext context(scene.stop);
  client.cache().Exists(context.get(), request, &response);
}

void RootChains(Scene& scene) {
  constexpr uint64_t kRoots = 12'000;
  WireClient client(scene.node.address(), scene.stop);
  const std::string ns = client.Open(OpaqueSpec(scene.Tenant("roots")));
  std::string keys;
  for (uint64_t i = 0; i < kRoots && scene.going();) {
    std::vector<PartToStore> parts;
    for (int n = 0; n < 512; ++n, ++i) {
      parts.push_back(SmallBlock(KeyOf("root", i)));
      parts.push_back(SmallBlock(KeyOf("child", i), KeyOf("root", i)));
      keys += KeyOf("root", i);
    }
    client.Store(ns, parts);
  }
  client.Matched(ns, keys);
}

void ExpiringLeases(Scene& scene) {
  WireClient client(scene.node.address(), scene.stop);
  const std::string ns = client.Open(OpaqueSpec(scene.Tenant("late")));
  for (uint64_t i = 0; i < 200 && scene.going(); ++i) {
    const std::string key = KeyOf("late", i);
    client.Store(ns, {SmallBlock(key, "", 20'000)});
    v1::MatchResponse response;
    client.Match(ns, key, 10, &response);
    // A reservation that nobody fills, and one that is filled too late.
    client.Reserve(ns, {SmallBlock(KeyOf("never", i), "", 20'000)}, 10);
    if (!scene.Spend(std::chrono::milliseconds(scene.Between(0, 25)))) return;
    const std::vector<std::string> data = client.Fetch(response.lease_id(), 1);
    scene.Expect(data[0].empty() || data[0] == std::string(20'000, 'x'),
                 "a fetch under a lease at its end brought other bytes");
    if (i % 2 == 0) client.Release(response.lease_id());
  }
}

void HintFloods(Scene& scene) {
  WireClient client(scene.node.address(), scene.stop);
  const std::string ns = client.Open(OpaqueSpec(scene.Tenant("hint")));
  v1::PrefetchRequest request;
  request.set_session_id(client.session());
  request.set_fingerprint(ns);
  request.set_needed_in_ms(300'000);
  for (uint64_t i = 0; i < kMostKeys; ++i) *request.mutable_keys() += KeyOf("hint", i);
  for (int i = 0; i < 20 && scene.going(); ++i) {
    CallContext context(scene.stop);
    v1::PrefetchResponse response;
    client.cache().Prefetch(context.get(), request, &response);
  }
}

}  // namespace cairn::fault
