// The same-node path without a client library: calls over a real ring to a real node's thread in
// the same process, both spinning.
//
// MatchLease: match, lease, the places of all parts, release: what a reader pays before it reads in
// place. Exists: 1,024 keys a call. Both print the median and the 99th percentile of one call.

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "common/log/log.h"
#include "protocol/shm/decode.h"
#include "services/cache/serve/local/local_server.h"

namespace cairn::cache {
namespace {

using shm::Op;

template <typename T>
T Get(Result<T> result) {
  CAIRN_CHECK(result.ok());
  return *std::move(result);
}

BlockKey Key(uint64_t n) {
  const uint64_t words[4] = {n * 0x9e3779b97f4a7c15ull, n, ~n, 1};
  BlockKey key;
  std::memcpy(key.bytes.data(), words, sizeof(words));
  return key;
}

class Node {
 public:
  explicit Node(uint64_t blocks) {
    log::Configure({.level = log::Level::kError});
    host_ = Get(HostTier::Create({.capacity_bytes = 512 << 20, .segment_bytes = 64 << 20}));
    engine_ = Get(CacheEngine::Create({}, {.tiers = Tiers(host_.get()),
                                           .clock = &SteadyClock::Get(),
                                           .executor = &executor_,
                                           .node_id = "node",
                                           .node_epoch = 1}));
    NamespaceSpec spec;
    spec.model = std::string("m");
    spec.revision = std::string("1");
    spec.numerics = std::string("n");
    OpaqueLayout layout;
    layout.description = std::string("d");
    layout.max_part_bytes = 65536;
    layout.parts = 1;
    spec.layout.form = layout;
    ns_ = Get(engine_->OpenNamespace(spec, false)).fingerprint;
    const SessionId session = Get(engine_->OpenSession("bench"));
    (void)Get(host_->AddOwner(spec.tenant));
    for (uint64_t n = 1; n <= blocks; ++n) Store(session, spec.layout, n);

    LocalServerOptions options;
    options.path = std::filesystem::temp_directory_path() /
                   ("cairn-local-ring-bench." + std::to_string(getpid()));
    options.quota_bytes = 1ull << 40;
    options.spin = std::chrono::seconds(1);
    server_ = Get(
        LocalServer::Start(options, {engine_.get(), host_.get(), &SteadyClock::Get(), nullptr}));
    Connect(server_->Admit(session), spec.tenant);
  }

  // One call; the time until its completion was reaped.
  shm::Completion Call(const shm::Submission& s) {
    CAIRN_CHECK(ring_->Submit(s));
    if (ring_->MustRing()) {
      shm::Doorbell doorbell;
      doorbell.header.type = static_cast<uint16_t>(shm::MessageType::kDoorbell);
      CAIRN_CHECK(shm::Send(socket_.get(), shm::AsBytes(doorbell)).ok());
    }
    CAIRN_CHECK(
        ring_->Wait(std::chrono::seconds(1), SteadyClock::Get().Now() + std::chrono::seconds(5)));
    shm::Completion done;
    CAIRN_CHECK(ring_->ReapOne(&done) == shm::ClientRing::Reap::kOne && shm::Check(done, s).ok() &&
                done.code == 0);
    return done;
  }
  shm::Submission WithKeys(Op op, uint64_t count) {
    for (uint64_t n = 1; n <= count; ++n) {
      std::memcpy(ring_->scratch().data() + (n - 1) * 32, Key(n).bytes.data(), 32);
    }
    shm::Submission s;
    s.op = static_cast<uint8_t>(op);
    s.input = {0, static_cast<uint32_t>(count * 32)};
    s.output = {512 << 10, 512 << 10};
    std::memcpy(s.body, ns_.bytes.data(), 32);
    return s;
  }
  void Release(uint64_t lease) {
    shm::Submission s;
    s.op = static_cast<uint8_t>(Op::kRelease);
    s.input = {448 << 10, 8};
    std::memcpy(ring_->scratch().data() + s.input.offset, &lease, 8);
    Call(s);
  }

 private:
  void Store(SessionId session, const Layout& layout, uint64_t n) {
    const std::vector<uint64_t> lengths = {4096};
    std::vector<std::byte> part(format::PartBytes(lengths));
    const format::PartRect rect = layout.WholeRect();
    format::SealPart(part, format::Codec::kOpaque, rect, static_cast<uint16_t>(layout.block_tokens),
                     lengths);
    ReservePartRequest request;
    request.key = Key(n);
    if (n > 1) request.parent = Key(n - 1);
    request.part = rect;
    request.bytes = part.size();
    const ReservationId id =
        Get(Get(engine_->Reserve(session, ns_, {&request, 1}, Duration(0)))[0]);
    CAIRN_CHECK(engine_->Write(session, id, 0, part).ok());
    CAIRN_CHECK(Get(engine_->Commit(session, {&id, 1}, ""))[0].ok());
  }
  void Connect(const LocalToken& token, const std::string& tenant) {
    socket_ = Get(shm::Dial(server_->path()));
    shm::Hello hello;
    hello.header.type = static_cast<uint16_t>(shm::MessageType::kHello);
    std::memcpy(hello.token, token.data(), token.size());
    shm::SetText(hello.tenant, tenant);
    CAIRN_CHECK(shm::Send(socket_.get(), shm::AsBytes(hello)).ok());
    const auto got =
        Get(shm::ReceiveBy(socket_.get(), SteadyClock::Get().Now() + std::chrono::seconds(5)));
    const auto welcome = Get(shm::DecodeWelcome(got.message, got.descriptors.size()));
    ring_.emplace(Get(
        shm::RingMemory::Map(got.descriptors[0].get(), {welcome.entries, welcome.scratch_bytes})));
  }

  InlineExecutor executor_;
  std::unique_ptr<HostTier> host_;
  std::unique_ptr<CacheEngine> engine_;
  std::unique_ptr<LocalServer> server_;
  Fingerprint ns_;
  shm::Descriptor socket_;
  std::optional<shm::ClientRing> ring_;
};

Node& TheNode() {
  static Node& node = *new Node(8192);
  return node;
}

void Report(benchmark::State& state, std::vector<double>& seconds) {
  std::sort(seconds.begin(), seconds.end());
  state.counters["p50_us"] = seconds[seconds.size() / 2] * 1e6;
  state.counters["p99_us"] = seconds[seconds.size() * 99 / 100] * 1e6;
}

void MatchLease(benchmark::State& state) {
  Node& node = TheNode();
  const auto count = static_cast<uint64_t>(state.range(0));
  shm::Submission s = node.WithKeys(Op::kMatch, count);
  s.flags = shm::kPlaces;
  std::vector<double> seconds;
  for (auto _ : state) {
    const TimePoint before = SteadyClock::Get().Now();
    const shm::Completion done = node.Call(s);
    seconds.push_back(Seconds(SteadyClock::Get().Now() - before));
    CAIRN_CHECK(done.matched == count && done.located == count);
    node.Release(done.lease);
  }
  Report(state, seconds);
}
BENCHMARK(MatchLease)->Arg(1)->Arg(16)->Arg(128)->Arg(2048)->UseRealTime()->MinTime(0.5);

void Exists(benchmark::State& state) {
  Node& node = TheNode();
  const shm::Submission s = node.WithKeys(Op::kExists, 1024);
  std::vector<double> seconds;
  for (auto _ : state) {
    const TimePoint before = SteadyClock::Get().Now();
    node.Call(s);
    seconds.push_back(Seconds(SteadyClock::Get().Now() - before));
  }
  state.SetItemsProcessed(state.iterations() * 1024);
  Report(state, seconds);
}
BENCHMARK(Exists)->UseRealTime()->MinTime(0.5);

void MatchOnly(benchmark::State& state) {
  Node& node = TheNode();
  shm::Submission s = node.WithKeys(Op::kMatch, 1024);
  s.flags = shm::kNoLease;
  std::vector<double> seconds;
  for (auto _ : state) {
    const TimePoint before = SteadyClock::Get().Now();
    node.Call(s);
    seconds.push_back(Seconds(SteadyClock::Get().Now() - before));
  }
  state.SetItemsProcessed(state.iterations() * 1024);
  Report(state, seconds);
}
BENCHMARK(MatchOnly)->UseRealTime()->MinTime(0.5);

}  // namespace
}  // namespace cairn::cache

BENCHMARK_MAIN();
