// Clients on the node's machine.

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "tests/fault/adversary/local_client.h"
#include "tests/fault/adversary/recipes.h"
#include "tests/fault/adversary/wire_client.h"
#include "tests/fault/support/fault_support.h"

namespace cairn::fault {
namespace {

PartToStore MarkedBlock(const std::string& tenant, uint64_t number, size_t bytes) {
  return {KeyOf(tenant, number), OpaquePart(MarkedBytes(tenant, bytes)), RectOf(0, 1, 0, 1), ""};
}

// How long a writer tries to store what was refused.
constexpr Duration kWritersPatience = seconds(5);

// A tenant with a gRPC session, and perhaps a same-node session.
struct Tenant {
  Tenant(Scene& scene, const std::string& tenant_name, bool same_node = true)
      : name(tenant_name), wire(scene.node.address(), scene.stop, tenant_name) {
    ns = wire.Open(OpaqueSpec(name));
    if (!same_node) return;
    auto opened = LocalClient::Open(wire.hello(), name);
    if (opened.ok()) local = *std::move(opened);
    error = ToString(opened.status());
  }
  void Store(uint64_t first, uint64_t blocks, size_t bytes) {
    std::vector<PartToStore> parts;
    for (uint64_t i = first; i < first + blocks; ++i) parts.push_back(MarkedBlock(name, i, bytes));
    wire.Store(ns, parts);
    if (local != nullptr) local->Poll();
  }
  void ExpectNothingForeign(Scene& scene) {
    if (local == nullptr) return;
    local->Poll();
    const uint64_t found = local->ForeignMarkers();
    if (found > 0) scene.Note(fmt::format("{} markers of other tenants", found));
    scene.Expect(found == 0, "foreign bytes: a same-node client maps other tenants' bytes");
  }

  const std::string name;
  WireClient wire;
  std::string ns;
  std::unique_ptr<LocalClient> local;
  std::string error;
};

// Reads blocks where they lie, and keeps looking at them until it is done.
class LentReader final : public client::FetchSink {
 public:
  LentReader(const FaultModel& model, const std::vector<BlockKey>& keys)
      : model_(model), keys_(keys) {}
  bool WantsLent() const override { return true; }
  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override {
    if (!model_.SliceIsRight(keys_[slice.block], slice.part, slice.layer, data)) ++wrong;
    return OkStatus();
  }
  Status OnLentSlice(const client::SliceInfo& slice, std::span<const std::byte> data,
                     std::shared_ptr<const client::LentHold> hold) override {
    kept_.push_back({slice, data, std::move(hold)});
    return OkStatus();
  }
  void OnBlockFailed(uint32_t, client::MissReason) override {}
  // Looks at all lent slices a second time, as a computation over them does.
  void LookAgain() {
    for (const Kept& kept : kept_) {
      const bool right = model_.SliceIsRight(keys_[kept.slice.block], kept.slice.part,
                                             kept.slice.layer, kept.data);
      if (!right && kept.hold->Pinned()) ++wrong;
      ++looked;
    }
  }
  uint64_t wrong = 0, looked = 0;

 private:
  struct Kept {
    client::SliceInfo slice;
    std::span<const std::byte> data;
    std::shared_ptr<const client::LentHold> hold;
  };
  const FaultModel& model_;
  const std::vector<BlockKey>& keys_;
  std::vector<Kept> kept_;
};

std::unique_ptr<testing::Process> StartHolder(Scene& scene, const char* mode) {
  auto holder = testing::Process::Start(
      {.argv = {testing::Binary("cairn_fault_holder"), scene.node.address(), mode}});
  if (!holder.ok()) return nullptr;
  const auto line = (*holder)->WaitForLine("holding", seconds(120));
  if (line.ok()) return *std::move(holder);
  const auto exit = (*holder)->WaitExit(milliseconds(100));
  scene.Note(
      fmt::format("the holder did not get what it wanted: step {}", exit.ok() ? exit->code : -1));
  return nullptr;
}

}  // namespace

void HelloLies(Scene& scene) {
  const std::string tenant = scene.Tenant("liar");
  WireClient session(scene.node.address(), scene.stop, tenant);
  v1::SessionEvent hello = session.hello();
  // The connections of the pass before may still be there, and take the places.
  Status served = LocalClient::Open(hello, tenant).status();
  for (int i = 0; i < 50 && !served.ok() && scene.Spend(milliseconds(100)); ++i) {
    served = LocalClient::Open(hello, tenant).status();
  }
  scene.Expect(served.ok(),
               "a Hello for the tenant that the session named is refused: " + ToString(served));
  scene.Expect(!LocalClient::Open(hello, "honest-local").ok(),
               "a Hello for another tenant than the session named is served");
  WireClient again(scene.node.address(), scene.stop, tenant);
  scene.Expect(again.Open(OpaqueSpec("honest-local")).empty() ||
                   again
                       .Reserve(again.Open(OpaqueSpec("honest-local")),
                                {MarkedBlock("honest-local", 1, 100)})
                       .empty(),
               "a session stores for another tenant than it named");
  hello.set_local_token(std::string(16, 'x'));
  scene.Expect(!LocalClient::Open(hello, "x-liar").ok(), "a Hello with a made-up token is served");
  for (int i = 0; i < 200 && scene.going(); ++i) {
    const auto socket = shm::Dial(session.hello().local_socket());
    if (!socket.ok()) continue;
    shm::Hello lie;
    lie.header.type = static_cast<uint16_t>(scene.random() % 8);
    lie.header.version = static_cast<uint16_t>(scene.random() % 3);
    for (char& c : lie.tenant) c = static_cast<char>(scene.random());
    std::memcpy(lie.token, session.hello().local_token().data(), sizeof(lie.token));
    const auto bytes = shm::AsBytes(lie);
    (void)shm::Send(socket->get(), bytes.first(scene.Between(1, bytes.size())));
  }
}

void HelloFlood(Scene& scene) {
  {
    std::vector<std::unique_ptr<Tenant>> crowd;
    for (int i = 0; i < 300 && scene.going(); ++i) {
      crowd.push_back(std::make_unique<Tenant>(scene, scene.Tenant("name")));
    }
  }
  // All have hung up. The node notices soon, but not at once.
  Tenant honest(scene, scene.Tenant("next"));
  for (int i = 0; i < 50 && honest.local == nullptr && scene.going(); ++i) {
    scene.Spend(milliseconds(100));
    auto again = LocalClient::Open(honest.wire.hello(), honest.name);
    if (again.ok()) honest.local = *std::move(again);
  }
  scene.Expect(honest.local != nullptr,
               "after 300 same-node clients came and went a new tenant is refused: " +
                   honest.error.substr(0, 80));
}

void RingLies(Scene& scene) {
  for (int i = 0; i < 20 && scene.going(); ++i) {
    Tenant liar(scene, scene.Tenant("ring"));
    if (liar.local == nullptr) return scene.Note(liar.error);
    liar.Store(0, 4, 4000);
    for (int n = 0; n < 200; ++n) {
      shm::Submission submission;
      auto* bytes = reinterpret_cast<uint8_t*>(&submission);
      for (size_t at = 0; at < sizeof(submission); ++at) {
        bytes[at] = static_cast<uint8_t>(scene.random());
      }
      if (n % 2 == 0) {
        // Almost right: that comes further.
        submission.op = static_cast<uint8_t>(1 + scene.random() % shm::kLastOp);
        submission.flags &= 3;
        submission.reserved = 0;
        submission.input = {0, static_cast<uint32_t>(scene.random() % 64 * 32)};
        submission.output = {4096, static_cast<uint32_t>(scene.random() % 64 * 32)};
        liar.ns.copy(reinterpret_cast<char*>(submission.body), 32);
      }
      liar.local->Submit(submission);
    }
    // The counters and descriptors, too.
    const auto ring = liar.local->ring_bytes();
    for (int n = 0; n < 64; ++n) {
      const size_t at = scene.random() % 4096;
      *const_cast<volatile std::byte*>(&ring[at]) = static_cast<std::byte>(scene.random());
    }
    scene.Spend(milliseconds(20));
    liar.ExpectNothingForeign(scene);
  }
}

void LentWrites(Scene& scene) {
  const FaultModel model({.tenant = scene.Tenant("lent"), .model = "lent", .dim = 64});
  auto connected = client::Connect({.address = scene.node.address(), .client_name = "reader"});
  if (!connected.ok()) return;
  client::CacheClient& reader = **connected;
  if (!reader.OpenNamespace(model.spec(), {.deadline = seconds(5)}).ok()) return;
  WaitUntil([&] { return reader.GetStats().path == client::Path::kLocal || !scene.going(); },
            seconds(120));
  uint64_t wrong = 0, looked = 0, flipped = 0, copied_wrong = 0;
  for (uint64_t prompt = 0; prompt < 60 && scene.going(); ++prompt) {
    const std::vector<BlockKey> keys = model.MakePrompt(prompt);
    // In place: into memory that writers of the tenant share.
    std::vector<client::PartToWrite> parts;
    for (const BlockKey& key : keys) {
      parts.push_back({.key = key, .rect = model.whole(), .bytes = model.PartBytes(model.whole())});
    }
    auto push = reader.BeginPush(model.fingerprint(), parts, {.deadline = seconds(5)});
    if (push.ok()) {
      for (size_t i = 0; i < parts.size(); ++i) {
        const auto& slot = (*push)->slots()[i];
        if (slot.room.empty()) continue;
        const std::vector<std::byte> part = model.MakePart(keys[i], model.whole());
        std::memcpy(slot.room.data(), part.data(), part.size());
      }
      (void)(*push)->Commit();
    }
    // A Hello brings all segments of the tenant, and those that are lent for writing.
    WireClient session(scene.node.address(), scene.stop, model.spec().tenant);
    auto writer = LocalClient::Open(session.hello(), model.spec().tenant);
    if (!writer.ok()) return scene.Note(ToString(writer.status()));
    LentReader sink(model, keys);
    {
      auto match = reader.Match(model.fingerprint(), keys, {.deadline = seconds(2)});
      if (!match.ok() || match->matched_blocks == 0) continue;
      (void)reader.Fetch(match->lease, {}, sink, {.deadline = seconds(5)});
    }
    // Between a reader's check and its use.
    flipped += (*writer)->FlipLentBytes(0, 1024);
    sink.LookAgain();
    wrong += sink.wrong;
    looked += sink.looked;
    copied_wrong += Read(reader, model, keys).wrong.size();
    (*writer)->FlipLentBytes(0, 1024);  // Back.
  }
  scene.Note(
      fmt::format("{} bytes flipped, {} slices read in place, {} wrong", flipped, looked, wrong));
  scene.Expect(wrong == 0, "lent bytes changed under a reader that had been told that they hold");
  scene.Expect(copied_wrong == 0, "wrong bytes were copied out of lent memory");
}

void TenantsComeAndGo(Scene& scene) {
  std::vector<std::unique_ptr<Tenant>> here;
  for (int i = 0; i < 16 && scene.going(); ++i) {
    if (here.size() > 3 || (here.size() > 1 && scene.random() % 3 == 0)) {
      const size_t leaves = scene.random() % here.size();
      here[leaves]->ExpectNothingForeign(scene);
      if (scene.random() % 2 == 0) here[leaves]->wire.DropTenant(here[leaves]->name);
      here.erase(here.begin() + static_cast<ptrdiff_t>(leaves));
      continue;
    }
    if (scene.random() % 2 == 0) {
      // One whose blocks come over the network alone, into memory that nobody maps.
      Tenant remote(scene, scene.Tenant("remote"), /*same_node=*/false);
      remote.Store(0, scene.Between(300, 1000), 60'000);
      if (scene.random() % 2 == 0) remote.wire.DropTenant(remote.name);
    }
    auto tenant = std::make_unique<Tenant>(scene, scene.Tenant("guest"));
    if (tenant->local == nullptr) {
      scene.Note(tenant->error.substr(0, 80));
      continue;
    }
    // Over the network first, then in place, so that the blocks lie in all kinds of memory.
    tenant->Store(0, scene.Between(1, 300), 60'000);
    for (uint64_t n = 1000; n < 1000 + scene.Between(0, 30); ++n) {
      (void)tenant->local->StoreInPlace(tenant->ns, KeyOf(tenant->name, n),
                                        OpaquePart(MarkedBytes(tenant->name, 60'000)));
    }
    tenant->ExpectNothingForeign(scene);
    here.push_back(std::move(tenant));
  }
  for (const auto& tenant : here) tenant->ExpectNothingForeign(scene);
}

void SegmentTurns(Scene& scene) {
  Tenant first(scene, scene.Tenant("turn-a")), second(scene, scene.Tenant("turn-b"));
  // Each Hello brings what the tenant has now, and nothing is ever unmapped.
  std::vector<std::unique_ptr<LocalClient>> mapped;
  std::set<uint64_t> counted;
  uint64_t number = 0, most = 0;
  for (int turn = 0; turn < 12 && scene.going(); ++turn) {
    Tenant& writer = turn % 2 == 0 ? first : second;
    for (int i = 0; i < 20 && scene.going(); ++i, number += 100) writer.Store(number, 100, 60'000);
    auto here = LocalClient::Open(writer.wire.hello(), writer.name);
    if (!here.ok()) continue;
    scene.Expect((*here)->ForeignMarkers() == 0,
                 "foreign bytes: a same-node client maps other tenants' bytes");
    mapped.push_back(*std::move(here));
    counted.clear();
    uint64_t held = 0;
    for (const auto& client : mapped) held += client->HeldBytes(&counted);
    most = std::max(most, held);
  }
  scene.Note(fmt::format("{} MiB of memory behind all that was ever mapped", most >> 20));
  // The host tier, and a segment of each that is about to be unmapped.
  scene.Expect(
      most <= (512ull + 128) << 20,
      fmt::format("clients that never unmap keep {} MiB of a host tier of 512 MiB", most >> 20));
}

void DropAndBumpRaces(Scene& scene) {
  const FaultModel model({.tenant = scene.Tenant("race"), .model = "race"});
  std::vector<std::unique_ptr<client::CacheClient>> clients;
  for (int i = 0; i < 6; ++i) {
    auto client = client::Connect({.address = scene.node.address(), .client_name = "racer"});
    if (client.ok()) clients.push_back(*std::move(client));
  }
  std::atomic<uint64_t> wrong{0}, reads{0};
  {
    std::vector<std::jthread> threads;
    for (const auto& client : clients) {
      threads.emplace_back([&, raw = client.get()](const std::stop_token& done) {
        (void)raw->OpenNamespace(model.spec(), {.deadline = seconds(5)});
        for (uint64_t i = 0; !done.stop_requested(); ++i) {
          const std::vector<BlockKey> keys = model.MakePrompt(i % 8);
          const ReadOutcome read = Read(*raw, model, keys, {.cancel = done});
          wrong += read.wrong.size();
          ++reads;
          if (read.matched_blocks < keys.size()) {
            (void)Write(*raw, model, keys, read.matched_blocks, model.whole());
          }
        }
      });
    }
    WireClient bumper(scene.node.address(), scene.stop);
    const std::string ns(model.fingerprint().View());
    const TimePoint end = SteadyClock::Get().Now() + seconds(5);
    for (uint64_t i = 0; scene.going() && SteadyClock::Get().Now() < end; ++i) {
      if (i % 50 == 49) {
        bumper.DropTenant(model.spec().tenant);
        for (const auto& client : clients) {
          (void)client->OpenNamespace(model.spec(), {.deadline = seconds(5)});
        }
      } else {
        bumper.BumpEpoch(ns);
      }
    }
  }
  scene.Note(fmt::format("{} reads", reads.load()));
  scene.Expect(wrong == 0, "wrong bytes while the namespace was bumped and dropped");
}

void StoppedHolder(Scene& scene) {
  // The holder's namespace: it is written in its program.
  const FaultModel model({});
  const std::string tenant = model.spec().tenant;
  const auto holder = StartHolder(scene, "hold");
  if (holder == nullptr) return;
  holder->Signal(SIGSTOP);
  WireClient same(scene.node.address(), scene.stop);
  Tenant other(scene, scene.Tenant("other"));
  // Its blocks fill the host tier and the disk, and then the tenant goes.
  constexpr uint64_t kFill = 90'000, kAtOnce = 1000;
  const std::vector<std::byte> bytes = model.MakePart(BlockKey(), model.whole());
  const std::string part(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const v1::PartRect rect = RectOf(0, model.whole().layer_end, 0, model.whole().head_end);
  for (uint64_t i = 0; i < kFill && scene.going(); i += kAtOnce) {
    std::vector<PartToStore> fill;
    for (uint64_t n = i; n < i + kAtOnce; ++n) fill.push_back({KeyOf("fill", n), part, rect, ""});
    same.Store(std::string(model.fingerprint().View()), fill);
  }
  same.DropTenant(tenant);
  scene.Spend(seconds(1));
  std::vector<PartToStore> parts;
  for (uint64_t i = 0; i < 1000; ++i) parts.push_back(MarkedBlock(other.name, i, 60'000));
  // As a writer does that has time: the disk takes a moment, and a namespace without blocks may
  // have made way for others.
  const TimePoint end = SteadyClock::Get().Now() + kWritersPatience;
  size_t refused = parts.size();
  do {
    if (other.wire.Open(OpaqueSpec(other.name)).empty()) continue;
    const std::vector<int> codes = other.wire.Store(other.ns, parts);
    std::vector<PartToStore> left;
    for (size_t i = 0; i < codes.size(); ++i) {
      if (codes[i] != grpc::OK && codes[i] != grpc::ALREADY_EXISTS) left.push_back(parts[i]);
    }
    parts.swap(left);
    refused = parts.size();
  } while (refused > 0 && SteadyClock::Get().Now() < end && scene.Spend(milliseconds(50)));
  holder->Signal(SIGCONT);
  holder->Kill();
  if (refused > 0) scene.Note("refused: " + other.wire.last_refusal());
  scene.Expect(refused == 0,
               fmt::format("{} of 1000 stores were refused because of a stopped client of a tenant "
                           "that was dropped",
                           refused));
}

void KilledHolders(Scene& scene) {
  for (int i = 0; i < 4 && scene.going(); ++i) {
    const auto holder = StartHolder(scene, i % 2 == 0 ? "hold" : "read");
    scene.Spend(milliseconds(scene.Between(0, 300)));
    if (holder != nullptr) holder->Kill();
  }
}

}  // namespace cairn::fault
