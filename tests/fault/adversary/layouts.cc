// Namespaces and layouts that declare much.

#include <set>

#include "tests/fault/adversary/local_client.h"
#include "tests/fault/adversary/recipes.h"
#include "tests/fault/adversary/wire_client.h"

namespace cairn::fault {

void ManyGroups(Scene& scene) {
  constexpr uint32_t kLayers = 65535;
  WireClient client(scene.node.address(), scene.stop);
  v1::NamespaceSpec spec = NativeSpec(scene.Tenant("groups"), "1", 1, 16, "raw");
  AddGroup(&spec, 1, {PlaneOf("k", 1, 1, v1::DTYPE_I8)});
  for (uint32_t i = 1; i < kLayers; ++i) AddGroup(&spec, 1, {});
  const std::string ns = client.Open(spec);
  if (ns.empty()) return;
  std::vector<PartToStore> parts(64);
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i] = {KeyOf("groups", i), std::string(2'000'000, 0), RectOf(0, kLayers, 0, 1), ""};
  }
  client.Reserve(ns, parts, 1000);
}

void LadderBomb(Scene& scene) {
  constexpr uint32_t kHeads = 1024;
  const uint32_t layers = scene.random() % 2 == 0 ? 65535 : 40;
  WireClient client(scene.node.address(), scene.stop);
  v1::NamespaceSpec spec =
      NativeSpec(scene.Tenant("bomb"), "1", kHeads, 256, "host=int8>disk=turbo:bits=4");
  AddGroup(&spec, layers,
           {PlaneOf("k", kHeads, 128, v1::DTYPE_F16), PlaneOf("v", kHeads, 128, v1::DTYPE_F16)});
  const std::string ns = client.Open(spec);
  if (ns.empty()) return;
  const v1::PartRect rect = RectOf(0, layers, 0, kHeads);
  const std::string part =
      SealedPart(std::vector<std::string>(layers, std::string(1, 0)), 2, rect, 256);
  client.Store(ns, {{KeyOf("bomb", scene.random()), part, rect, ""}});
  scene.Spend(std::chrono::seconds(1));  // For the copy to disk.
}

void NamespaceFlood(Scene& scene) {
  WireClient client(scene.node.address(), scene.stop);
  const std::string tenant = scene.Tenant("flood");
  uint64_t opened = 0;
  grpc::Status refused;
  for (int i = 0; i < 3000 && scene.going(); ++i) {
    if (client.Open(OpaqueSpec(tenant, std::to_string(i)), &refused).empty()) break;
    ++opened;
  }
  grpc::Status error;
  const bool served = !client.Open(OpaqueSpec(scene.Tenant("model")), &error).empty();
  scene.Note(fmt::format("{} namespaces of one tenant, then: {}", opened,
                         refused.error_message().substr(0, 80)));
  scene.Expect(served, "after one tenant's flood of namespaces another tenant gets none: " +
                           error.error_message());
  client.DropTenant(tenant);
}

void HeavyNamespaces(Scene& scene) {
  WireClient client(scene.node.address(), scene.stop);
  v1::NamespaceSpec spec = NativeSpec(scene.Tenant("heavy"), "0", 1, 16, "raw");
  for (uint32_t group = 0; group < 22'900; ++group) {
    std::vector<v1::Plane> planes;
    for (int i = 0; i < 16; ++i) {
      // Neighbours differ, so that no two can be one group.
      planes.push_back(PlaneOf(fmt::format("{:x}", i), 1, 1 + group % 2, v1::DTYPE_I8));
    }
    AddGroup(&spec, 1, planes);
  }
  for (int i = 0; i < 25 && scene.going(); ++i) {
    spec.set_revision(std::to_string(i));
    if (client.Open(spec).empty()) break;
  }
  client.DropTenant(spec.tenant());
}

void SaltProbe(Scene& scene) {
  WireClient owner(scene.node.address(), scene.stop);
  WireClient other(scene.node.address(), scene.stop);
  v1::NamespaceSpec spec = OpaqueSpec(scene.Tenant("salt"));
  spec.set_salt("top-secret-salt");
  owner.Open(spec);
  for (const bool strict : {false, true}) {
    CallContext context(scene.stop);
    v1::OpenNamespaceRequest request;
    v1::OpenNamespaceResponse response;
    *request.mutable_spec() = spec;
    request.mutable_spec()->set_salt("guess");
    request.set_strict(strict);
    const grpc::Status status = other.cache().OpenNamespace(context.get(), request, &response);
    const std::string text = response.DebugString() + status.error_message();
    scene.Expect(
        text.find("top-secret") == std::string::npos && text.find("746f702d") == std::string::npos,
        "OpenNamespace with another salt says the stored one");
  }
}

void ManyParts(Scene& scene) {
  constexpr uint32_t kParts = 1024, kBlocks = 16;
  const std::string tenant = scene.Tenant("parts");
  std::string ns, keys;
  {
    WireClient client(scene.node.address(), scene.stop);
    ns = client.Open(OpaqueSpec(tenant, "1", kParts));
    for (uint32_t block = 0; block < kBlocks && scene.going(); ++block) {
      std::vector<PartToStore> parts;
      for (uint32_t head = 0; head < kParts; ++head) {
        parts.push_back({KeyOf("parts", block), OpaquePart(MarkedBytes(tenant, 1008), head),
                         RectOf(0, 1, head, head + 1), ""});
      }
      const std::vector<int> codes = client.Store(ns, parts);
      scene.Expect(std::set<int>(codes.begin(), codes.end()) == std::set<int>{0},
                   "a part of a block of 1,024 parts was refused");
      keys += KeyOf("parts", block);
    }
    scene.Expect(client.Flush().ok(), "a flush with blocks of 1,024 parts failed");
  }
  if (!scene.going()) return;
  const Status restarted = scene.node.Restart(/*kill=*/false);
  scene.Expect(restarted.ok(), "restart: " + ToString(restarted));
  WireClient client(scene.node.address(), scene.stop);
  client.Open(OpaqueSpec(tenant, "1", kParts));
  v1::MatchResponse match;
  client.Match(ns, keys, 60'000, &match);
  const std::vector<std::string> data = client.Fetch(match.lease_id(), match.matched_blocks());
  uint32_t whole = 0;
  for (const std::string& block : data) {
    if (block.size() == size_t{kParts} * 1008 && IsMarked(block, tenant)) ++whole;
  }
  scene.Note(
      fmt::format("{} of {} blocks matched, {} came", match.matched_blocks(), kBlocks, whole));
  scene.Expect(whole == kBlocks, "flushed blocks of 1,024 parts did not all come back from disk");
}

void PartsOfOneKey(Scene& scene) {
  WireClient client(scene.node.address(), scene.stop);
  v1::NamespaceSpec spec = NativeSpec(scene.Tenant("grid"), "1", 64, 16, "raw");
  AddGroup(&spec, 64, {PlaneOf("k", 64, 8, v1::DTYPE_F16)});
  const std::string ns = client.Open(spec);
  std::vector<PartToStore> parts;
  for (uint32_t layer = 0; layer < 64; ++layer) {
    for (uint32_t head = 0; head < 64; ++head) {
      const v1::PartRect rect = RectOf(layer, layer + 1, head, head + 1);
      parts.push_back({KeyOf("grid", 1), SealedPart({std::string(256, 'g')}, 0, rect), rect, ""});
    }
  }
  for (int i = 0; i < 10 && scene.going(); ++i) {
    client.Reserve(ns, parts, 50);
    client.Store(ns, parts);
    client.BumpEpoch(ns);
  }
}

}  // namespace cairn::fault
