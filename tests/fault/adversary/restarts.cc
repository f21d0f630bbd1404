// Nodes that die, and that come back with other settings.

#include "tests/fault/adversary/local_client.h"
#include "tests/fault/adversary/recipes.h"
#include "tests/fault/adversary/wire_client.h"
#include "tests/fault/support/fault_support.h"

namespace cairn::fault {
namespace {

// Stores blocks of a tenant until `blocks` of 60 KB are there, and flushes.
void Fill(Scene& scene, const std::string& tenant, uint64_t blocks) {
  WireClient client(scene.node.address(), scene.stop);
  const std::string ns = client.Open(OpaqueSpec(tenant));
  for (uint64_t i = 0; i < blocks && scene.going(); i += 100) {
    std::vector<PartToStore> parts;
    for (uint64_t n = i; n < i + 100; ++n) {
      parts.push_back(
          {KeyOf(tenant, n), OpaquePart(MarkedBytes(tenant, 60'000)), RectOf(0, 1, 0, 1), ""});
    }
    client.Store(ns, parts);
  }
  (void)client.Flush();
}

// How many of the blocks are there with the right bytes. Wrong bytes are a finding.
uint64_t CountWhole(Scene& scene, const std::string& tenant, uint64_t blocks) {
  WireClient client(scene.node.address(), scene.stop);
  const std::string ns = client.Open(OpaqueSpec(tenant));
  uint64_t whole = 0, wrong = 0;
  for (uint64_t i = 0; i < blocks && scene.going(); ++i) {
    v1::MatchResponse match;
    client.Match(ns, KeyOf(tenant, i), 10'000, &match);
    if (match.matched_blocks() == 0) continue;
    const std::vector<std::string> data = client.Fetch(match.lease_id(), 1);
    client.Release(match.lease_id());
    if (data[0].empty()) continue;
    if (data[0].size() == 60'000 && IsMarked(data[0], tenant)) {
      ++whole;
    } else {
      ++wrong;
    }
  }
  scene.Expect(wrong == 0, fmt::format("{} blocks have wrong bytes after a restart", wrong));
  return whole;
}

}  // namespace

void StrangerAdmin(Scene& scene) {
  constexpr uint64_t kBlocks = 20;
  scene.PauseHonest();
  const Status restarted = scene.node.Restart(/*kill=*/false, {"--admin.allow_loopback", "false"});
  scene.Expect(restarted.ok(), "restart: " + ToString(restarted));
  const std::string tenant = scene.Tenant("victim");
  {
    Fill(scene, tenant, kBlocks);
    WireClient stranger(scene.node.address(), scene.stop);
    const std::string ns = stranger.Open(OpaqueSpec(tenant));
    CallContext context(scene.stop);
    v1::ListNamespacesRequest request;
    v1::ListNamespacesResponse response;
    for (const grpc::Status& status :
         {stranger.DropTenant(tenant), stranger.BumpEpoch(ns),
          stranger.admin().ListNamespaces(context.get(), request, &response)}) {
      scene.Expect(status.error_code() == grpc::StatusCode::PERMISSION_DENIED,
                   fmt::format("a stranger's Admin call over loopback ended with code {}: {}",
                               static_cast<int>(status.error_code()), status.error_message()));
    }
  }
  scene.Expect(CountWhole(scene, tenant, kBlocks) == kBlocks,
               "blocks are gone that a stranger wanted to drop");
  (void)scene.node.Restart(/*kill=*/false);
  scene.ContinueHonest();
}

void KillNine(Scene& scene) {
  for (int i = 0; i < 3 && scene.going(); ++i) {
    scene.Spend(milliseconds(scene.Between(100, 1500)));
    const Status restarted = scene.node.Restart(/*kill=*/true);
    scene.Expect(restarted.ok(), "after kill -9: " + ToString(restarted));
    scene.Spend(seconds(3));
  }
}

void OtherCapacities(Scene& scene) {
  constexpr uint64_t kBlocks = 400;
  const std::string tenant = scene.Tenant("move");
  Fill(scene, tenant, kBlocks);
  const std::vector<std::vector<std::string>> others = {
      {"--host.capacity", "128MiB", "--disk.capacity", "4GiB"},
      {"--disk.capacity", "64MiB"},
      {"--host.capacity", "256MiB", "--index.capacity", "8MiB"},
  };
  for (size_t i = 0; i <= others.size() && scene.going(); ++i) {
    // Back to its own settings at the end.
    const Status restarted = scene.node.Restart(
        /*kill=*/scene.random() % 2 == 0,
        i < others.size() ? others[i] : std::vector<std::string>());
    scene.Expect(restarted.ok(), "restart with other capacities: " + ToString(restarted));
    const uint64_t whole = CountWhole(scene, tenant, kBlocks);
    scene.Note(fmt::format("{} of {} blocks after restart {}", whole, kBlocks, i + 1));
  }
}

void GrowingDisk(Scene& scene) {
  // A directory of its own, whose first start has little room: its value files are small.
  const TemporaryDirectory directory;
  const std::vector<std::string> few = {
      "--disk.path",     directory.path(), "--disk.capacity", "32MiB", "--disk.min_free", "0",
      "--host.capacity", "64MiB"};
  std::vector<std::string> many = few;
  many[3] = "2GiB";
  scene.PauseHonest();
  const std::string tenant = scene.Tenant("grow");
  Status restarted = scene.node.Restart(/*kill=*/false, few);
  scene.Expect(restarted.ok(), "first start: " + ToString(restarted));
  Fill(scene, tenant, 100);
  restarted = scene.node.Restart(/*kill=*/false, many);
  scene.Expect(restarted.ok(), "start with 64 times the room: " + ToString(restarted));
  Fill(scene, tenant, 4000);
  const uint64_t descriptors = scene.node.open_descriptors();
  scene.Note(fmt::format("{} open descriptors at 240 MB of 2 GiB", descriptors));
  scene.Expect(descriptors < 110, fmt::format("{} open descriptors at an eighth of the room: at "
                                              "all of it there are more than the limit of 1024",
                                              descriptors));
  restarted = scene.node.Restart(/*kill=*/true, many);
  scene.Expect(restarted.ok(), "start again: " + ToString(restarted));
  const uint64_t whole = CountWhole(scene, tenant, 4000);
  scene.Note(fmt::format("{} of 4000 blocks after a kill", whole));
  (void)scene.node.Restart(/*kill=*/false);
  scene.ContinueHonest();
}

}  // namespace cairn::fault
