// The C++ client against the real node: what it promises when the node dies, hangs, comes back.

#include <signal.h>

#include <filesystem>
#include <thread>

#include "cairn/client/connect.h"
#include "cairn/client/rect_assembler.h"
#include "common/status/matchers.h"
#include "tests/support/process.h"
#include "tests/unit/clients/cpp/patient_calls.h"

namespace cairn::client {
namespace {

using cairn::testing::CacheNode;
using cairn::testing::Process;
using cairn::testing::StatusIs;
using cairn::testing::TemporaryDirectory;
using client::testing::Chain;
using client::testing::CheckingSink;
using client::testing::kCall;
using client::testing::kFetch;
using client::testing::kMatch;
using client::testing::kPush;
using client::testing::LargeSpec;
using client::testing::SliceData;
using client::testing::SmallSpec;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::_;
using ::testing::IsEmpty;

class ClientNodeTest : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& args = {}) {
    auto node = CacheNode::Start(args);
    ASSERT_OK(node);
    node_ = std::move(*node);
    auto client = Connect({.address = node_->address(), .client_name = "client_node_test"});
    ASSERT_OK(client);
    client_ = std::move(*client);
  }
  void Store(const NamespaceSpec& spec, const Chain& chain) {
    client::testing::Store(*client_, spec, chain);
  }
  // Kills the node and starts it again at the same port.
  void Restart(std::vector<std::string> args) {
    const std::string address = node_->address();
    node_->process().Kill();
    args.insert(args.end(), {"--listen", address});
    auto node = CacheNode::Start(args);
    ASSERT_OK(node);
    node_ = std::move(*node);
  }
  // The match that works again, at most a minute later.
  Result<MatchOutcome> Recovered(const Digest& fingerprint, const std::vector<BlockKey>& keys) {
    const auto until = steady_clock::now() + seconds(120);
    while (true) {
      auto match = client_->Match(fingerprint, keys, {.deadline = seconds(2)});
      if (match.ok() || steady_clock::now() > until) return match;
      std::this_thread::yield();
    }
  }

  std::unique_ptr<CacheNode> node_;
  std::unique_ptr<CacheClient> client_;
};

TEST_F(ClientNodeTest, WhatWasPushedIsMatchedAndFetched) {
  Start();
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 20);
  Store(spec, chain);
  auto match = client_->Match(Fingerprint(spec), chain.keys, kMatch);
  ASSERT_OK(match);
  EXPECT_EQ(match->matched_blocks, 20u);
  EXPECT_EQ(match->miss_reason, MissReason::kNone);
  CheckingSink sink(spec, chain.keys);
  ASSERT_OK(client_->Fetch(match->lease, {}, sink, kFetch));
  EXPECT_EQ(sink.slices, 80u);
  EXPECT_EQ(sink.wrong, 0u);
  EXPECT_THAT(sink.failed, IsEmpty());
  CheckingSink some(spec, chain.keys);
  ASSERT_OK(client_->Fetch(match->lease,
                           {.block_begin = 5, .block_end = 7, .layer_begin = 1, .layer_end = 2},
                           some, kFetch));
  EXPECT_EQ(some.slices, 2u);

  auto exists = client_->Exists(Fingerprint(spec), chain.keys, kCall);
  ASSERT_OK(exists);
  for (const auto& tier : *exists) EXPECT_EQ(tier, TierKind::kHost);
  auto again = client_->Push(Fingerprint(spec), chain.parts, kPush);
  ASSERT_OK(again);
  for (const Status& status : *again) EXPECT_OK(status) << "stored already is success";
  EXPECT_OK(client_->RenewLease(match->lease, seconds(60), kCall));
  auto stats = client_->Stat(kCall);
  ASSERT_OK(stats);
  EXPECT_EQ(stats->blocks, 20u);
  EXPECT_EQ(stats->leases, 1u);
  match->lease.Release();
  const auto until = steady_clock::now() + seconds(120);
  while (stats->leases != 0 && steady_clock::now() < until) stats = client_->Stat(kCall);
  EXPECT_EQ(stats->leases, 0u);
}

TEST_F(ClientNodeTest, LargeSlicesComeInPieces) {
  Start();
  const NamespaceSpec spec = LargeSpec(8192);  // 3 MiB a slice.
  const Chain chain(spec, 2);
  Store(spec, chain);
  auto match = client_->Match(Fingerprint(spec), chain.keys, kMatch);
  ASSERT_OK(match);
  CheckingSink sink(spec, chain.keys);
  ASSERT_OK(client_->Fetch(match->lease, {}, sink, kFetch));
  EXPECT_EQ(sink.slices, 8u);
  EXPECT_EQ(sink.wrong, 0u);
}

TEST_F(ClientNodeTest, SixWritersAndAReaderOfAnotherShape) {
  Start();
  const NamespaceSpec spec = SmallSpec();
  std::vector<format::PartRect> rects;
  for (uint16_t layers = 0; layers < 4; layers += 2) {
    for (uint16_t heads = 0; heads < 6; heads += 2) {
      rects.push_back(
          {layers, static_cast<uint16_t>(layers + 2), heads, static_cast<uint16_t>(heads + 2)});
    }
  }
  std::vector<std::thread> writers;
  std::atomic<int> good{0};
  for (const format::PartRect& rect : rects) {
    writers.emplace_back([&, rect] {
      auto writer = Connect({.address = node_->address()});
      const Chain chain(spec, 3, {rect});
      if (!writer.ok() || !(*writer)->OpenNamespace(spec, kCall).ok()) return;
      auto pushed = (*writer)->Push(Fingerprint(spec), chain.parts, kPush);
      if (!pushed.ok()) return;
      for (const Status& status : *pushed) good += status.ok() ? 1 : 0;
    });
  }
  for (auto& writer : writers) writer.join();
  ASSERT_EQ(good, 18);

  ASSERT_OK(client_->OpenNamespace(spec, kCall));
  const std::vector<BlockKey> keys = testing::KeysFor(spec, 3);
  auto match = client_->Match(Fingerprint(spec), keys, kMatch);
  ASSERT_OK(match);
  ASSERT_EQ(match->matched_blocks, 3u);

  // Heads 1 to 4 of all layers.
  const format::PartRect want = {0, 4, 1, 5};
  std::vector<std::vector<std::byte>> blocks(
      3, std::vector<std::byte>(RectAssembler::Bytes(spec.layout, want)));
  std::vector<RectAssembler> assemblers;
  for (auto& block : blocks) assemblers.push_back(*RectAssembler::Create(spec.layout, want, block));
  class Sink final : public FetchSink {
   public:
    explicit Sink(std::vector<RectAssembler>& to) : to_(to) {}
    Status OnSlice(const SliceInfo& slice, std::span<const std::byte> data) override {
      return to_.at(slice.block).Add(slice.part, slice.layer, data);
    }
    void OnBlockFailed(uint32_t block, MissReason) override { ADD_FAILURE() << "block " << block; }

   private:
    std::vector<RectAssembler>& to_;
  } sink(assemblers);
  ASSERT_OK(client_->Fetch(match->lease, {}, sink, kFetch));

  for (uint32_t b = 0; b < 3; ++b) {
    ASSERT_TRUE(assemblers[b].Complete());
    // Put together head by head from what each writer wrote.
    std::vector<std::byte> expected;
    const size_t head_bytes = 16 * 8 * 2;
    for (uint32_t layer : {0u, 1u, 3u}) {
      for (size_t plane = 0; plane < 2; ++plane) {
        for (uint16_t head = 1; head < 5; ++head) {
          const format::PartRect& rect = rects[(layer < 2 ? 0 : 3) + head / 2];
          const std::vector<std::byte> slice = SliceData(spec, keys[b], layer, rect);
          const size_t at = (plane * 2 + (head - rect.head_begin)) * head_bytes;
          expected.insert(expected.end(), slice.begin() + static_cast<std::ptrdiff_t>(at),
                          slice.begin() + static_cast<std::ptrdiff_t>(at + head_bytes));
        }
      }
    }
    EXPECT_EQ(blocks[b], expected);
  }
}

TEST_F(ClientNodeTest, NodeKilledInTheMiddleOfAFetch) {
  Start();
  const NamespaceSpec spec = LargeSpec(2048);
  const Chain chain(spec, 12);  // 28 MiB: more than sockets hold.
  Store(spec, chain);
  auto match = client_->Match(Fingerprint(spec), chain.keys, kMatch);
  ASSERT_OK(match);
  CheckingSink sink(spec, chain.keys);
  sink.on_slice = [&](const SliceInfo&) {
    if (sink.slices == 3) node_->process().Kill();
  };
  EXPECT_THAT(client_->Fetch(match->lease, {}, sink, kFetch), StatusIs(StatusCode::kUnavailable, _))
      << "not by a deadline";
  EXPECT_GE(sink.slices, 3u);
  EXPECT_LT(sink.slices, 48u);
  EXPECT_EQ(sink.wrong, 0u);
  // Nothing of it costs a request more than its deadline, of 50 ms.
  for (int i = 0; i < 20; ++i) {
    const auto call = steady_clock::now();
    EXPECT_FALSE(client_->Match(Fingerprint(spec), chain.keys, {}).ok());
    EXPECT_LT(steady_clock::now() - call, seconds(30));
  }
}

TEST_F(ClientNodeTest, NodeKilledAndRestartedIsFoundAgainWithItsDisk) {
  TemporaryDirectory disk;
  const std::vector<std::string> args = {"--disk.path", disk.path() + "/disk", "--disk.capacity",
                                         "256MiB"};
  Start(args);
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 10);
  Store(spec, chain);
  ASSERT_OK(client_->Flush({.deadline = seconds(60)}));
  auto before = client_->Match(Fingerprint(spec), chain.keys, kMatch);
  ASSERT_OK(before);
  Restart(args);
  auto after = Recovered(Fingerprint(spec), chain.keys);
  ASSERT_OK(after);
  EXPECT_EQ(after->matched_blocks, 10u);
  CheckingSink sink(spec, chain.keys);
  ASSERT_OK(client_->Fetch(after->lease, {}, sink, kFetch));
  EXPECT_EQ(sink.slices, 40u);
  EXPECT_EQ(sink.wrong, 0u);
  EXPECT_THAT(client_->Fetch(before->lease, {}, sink, kFetch), StatusIs(StatusCode::kNotFound, _))
      << "a lease of the dead node";
  EXPECT_EQ(client_->GetStats().sessions, 2u);
}

TEST_F(ClientNodeTest, AHintBringsBlocksFromDiskToTheHostTier) {
  TemporaryDirectory disk;
  const std::vector<std::string> args = {"--disk.path", disk.path() + "/disk", "--disk.capacity",
                                         "256MiB"};
  Start(args);
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 10);
  Store(spec, chain);
  ASSERT_OK(client_->Flush({.deadline = seconds(60)}));
  Restart(args);
  auto asked = Recovered(Fingerprint(spec), {chain.keys[0]});
  ASSERT_OK(asked);
  const auto hint = client_->Prefetch(Fingerprint(spec), chain.keys, seconds(5), kCall);
  ASSERT_OK(hint);
  EXPECT_EQ(hint->present_blocks + hint->queued_blocks, 10u);
  EXPECT_EQ(hint->absent_blocks + hint->refused_blocks, 0u);
  const auto until = steady_clock::now() + seconds(120);
  size_t in_host = 0;
  while (in_host < 10 && steady_clock::now() < until) {
    const auto tiers = client_->Exists(Fingerprint(spec), chain.keys, kCall);
    ASSERT_OK(tiers);
    in_host = static_cast<size_t>(std::count(tiers->begin(), tiers->end(), TierKind::kHost));
  }
  EXPECT_EQ(in_host, 10u);
  const auto match = client_->Match(Fingerprint(spec), chain.keys, kMatch);
  ASSERT_OK(match);
  ASSERT_EQ(match->tiers.size(), 1u);
  EXPECT_EQ(match->tiers[0].tier, TierKind::kHost);
  const auto stats = client_->Stat(kCall);
  ASSERT_OK(stats);
  EXPECT_GE(stats->prefetched_blocks, 9u);  // The first may have come for the match.
  EXPECT_EQ(stats->prefetched_used_blocks, stats->prefetched_blocks);
}

TEST_F(ClientNodeTest, NamespacesAreOpenedAgainAtANodeThatForgotThem) {
  Start();
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 2);
  Store(spec, chain);
  Restart({});
  auto match = Recovered(Fingerprint(spec), chain.keys);
  ASSERT_OK(match);
  EXPECT_EQ(match->matched_blocks, 0u) << "no disk: nothing survived";
  auto pushed = client_->Push(Fingerprint(spec), chain.parts, kPush);
  ASSERT_OK(pushed);
  EXPECT_OK(pushed->at(0));
}

TEST_F(ClientNodeTest, HangingNodeCostsAFewDeadlinesAndIsFoundAgain) {
  Start();
  const NamespaceSpec spec = LargeSpec(2048);
  const Chain chain(spec, 12);
  Store(spec, chain);
  auto match = client_->Match(Fingerprint(spec), chain.keys, kMatch);
  ASSERT_OK(match);
  // In the middle of a fetch.
  CheckingSink sink(spec, chain.keys);
  sink.on_slice = [&](const SliceInfo&) {
    if (sink.slices == 3) node_->process().Signal(SIGSTOP);
  };
  EXPECT_THAT(client_->Fetch(match->lease, {}, sink, {.progress = seconds(1)}),
              StatusIs(StatusCode::kDeadlineExceeded, _));
  EXPECT_EQ(sink.wrong, 0u);
  // 100 requests: two more deadlines open the breaker, a probe or two may follow.
  const MatchOptions hurried = {.deadline = milliseconds(200)};
  for (int i = 0; i < 100; ++i)
    EXPECT_FALSE(client_->Match(Fingerprint(spec), chain.keys, hurried).ok());
  // However slow this machine is: the pauses between probes grow.
  EXPECT_GT(client_->GetStats().breaker_rejected, 80u);
  const auto push = steady_clock::now();
  EXPECT_FALSE(client_->Push(Fingerprint(spec), chain.parts, {.deadline = milliseconds(100)}).ok());
  EXPECT_LT(steady_clock::now() - push, seconds(30));
  node_->process().Signal(SIGCONT);
  auto recovered = Recovered(Fingerprint(spec), chain.keys);
  ASSERT_OK(recovered);
  EXPECT_EQ(recovered->matched_blocks, 12u);
  EXPECT_EQ(client_->GetStats().sessions, 1u) << "the connection outlived the pause";
}

TEST_F(ClientNodeTest, ADifferentSettingIsNamed) {
  Start();
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 2);
  Store(spec, chain);
  NamespaceSpec other = spec;
  other.revision = "2";
  auto opened = client_->OpenNamespace(other, kCall);
  ASSERT_OK(opened);
  ASSERT_EQ(opened->differs.size(), 1u);
  EXPECT_EQ(opened->differs[0].difference.field, "revision");
  EXPECT_EQ(opened->differs[0].stored_blocks, 2u);
  auto match = client_->Match(Fingerprint(other), testing::KeysFor(other, 2), kMatch);
  ASSERT_OK(match);
  EXPECT_EQ(match->miss_reason, MissReason::kFingerprint);
}

TEST_F(ClientNodeTest, EventsTellWhatIsStored) {
  Start();
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 3);
  Store(spec, chain);
  auto events = client_->WatchEvents({.fingerprint = Fingerprint(spec), .snapshot = true});
  ASSERT_OK(events);
  std::set<BlockKey> stored;
  for (int i = 0; i < 100; ++i) {
    auto event = (*events)->Next(seconds(60));
    ASSERT_OK(event);
    ASSERT_TRUE(event->has_value());
    if ((*event)->kind == CacheEvent::Kind::kSnapshotEnd) break;
    ASSERT_EQ((*event)->kind, CacheEvent::Kind::kStored);
    stored.insert((*event)->key);
  }
  EXPECT_EQ(stored, std::set<BlockKey>(chain.keys.begin(), chain.keys.end()));
}

TEST_F(ClientNodeTest, AdminDropsAndHides) {
  Start();
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 3);
  Store(spec, chain);
  auto admin = ConnectAdmin({.address = node_->address()});
  ASSERT_OK(admin);
  auto list = (*admin)->ListNamespaces("", kCall);
  ASSERT_OK(list);
  ASSERT_EQ(list->size(), 1u);
  EXPECT_EQ(list->at(0).spec, spec);
  EXPECT_EQ(list->at(0).blocks, 3u);
  auto bumped = (*admin)->BumpEpoch(Fingerprint(spec), kCall);
  ASSERT_OK(bumped);
  EXPECT_EQ(bumped->hidden_blocks, 3u);
  auto match = client_->Match(Fingerprint(spec), chain.keys, kMatch);
  ASSERT_OK(match);
  EXPECT_EQ(match->matched_blocks, 0u);
  EXPECT_OK((*admin)->DropNamespace(Fingerprint(spec), kCall));
  EXPECT_THAT((*admin)->DropNamespace(Fingerprint(spec), kCall),
              StatusIs(StatusCode::kNotFound, _));
  // The client opens it again by itself.
  EXPECT_OK(Recovered(Fingerprint(spec), chain.keys));
  auto dropped = (*admin)->DropTenant("default", kCall);
  ASSERT_OK(dropped);
  EXPECT_EQ(dropped->namespaces, 1u);
}

// Certificates of one authority for the node, for a client, and for a client of another authority.
class ClientNodeTlsTest : public ClientNodeTest {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists("/usr/bin/openssl"))
      GTEST_SKIP() << "no openssl program on this machine";
    for (const std::string ca : {"ca", "foreign_ca"}) {
      Openssl({"req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
               "-days", "2", "-subj", "/CN=" + ca, "-keyout", File(ca + ".key"), "-out",
               File(ca + ".pem")});
    }
    Sign("node", "ca", "subjectAltName=IP:127.0.0.1");
    Sign("client", "ca", "subjectAltName=DNS:client");
    Sign("stranger", "foreign_ca", "subjectAltName=DNS:stranger");
  }
  std::string File(const std::string& name) const { return directory_.path() + "/" + name; }
  void Openssl(std::vector<std::string> args) {
    args.insert(args.begin(), "/usr/bin/openssl");
    auto process = Process::Start({.argv = args});
    ASSERT_OK(process);
    auto exit = (*process)->WaitExit(seconds(120));
    ASSERT_OK(exit);
    ASSERT_EQ(exit->code, 0) << (*process)->err();
  }
  void Sign(const std::string& name, const std::string& ca, const std::string& extension) {
    Openssl({"req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
             "/CN=" + name, "-addext", extension, "-keyout", File(name + ".key"), "-out",
             File(name + ".csr")});
    Openssl({"x509", "-req", "-days", "2", "-in", File(name + ".csr"), "-CA", File(ca + ".pem"),
             "-CAkey", File(ca + ".key"), "-CAcreateserial", "-copy_extensions", "copy", "-out",
             File(name + ".pem")});
  }
  // One that is refused waits for all of that time.
  Status OpenWith(const TlsOptions& tls, Duration deadline = seconds(3)) {
    auto client = Connect({.address = node_->address(), .tls = tls});
    CAIRN_RETURN_IF_ERROR(client.status());
    return (*client)->OpenNamespace(SmallSpec(), {.deadline = deadline}).status();
  }
  TemporaryDirectory directory_;
};

TEST_F(ClientNodeTlsTest, BothSidesShowCertificates) {
  auto node = CacheNode::Start({"--tls.cert", File("node.pem"), "--tls.key", File("node.key"),
                                "--tls.client_ca", File("ca.pem")});
  ASSERT_OK(node);
  node_ = std::move(*node);
  const std::string ca = File("ca.pem");
  EXPECT_OK(
      OpenWith({.ca_file = ca, .cert_file = File("client.pem"), .key_file = File("client.key")},
               seconds(60)));
  EXPECT_FALSE(OpenWith({}).ok()) << "plaintext";
  EXPECT_FALSE(OpenWith({.ca_file = ca}).ok()) << "no certificate";
  EXPECT_FALSE(
      OpenWith({.ca_file = ca, .cert_file = File("stranger.pem"), .key_file = File("stranger.key")})
          .ok());
  EXPECT_FALSE(OpenWith({.ca_file = File("foreign_ca.pem"),
                         .cert_file = File("client.pem"),
                         .key_file = File("client.key")})
                   .ok())
      << "the client does not trust this node";
}

}  // namespace
}  // namespace cairn::client
