#pragma once
// A session without sockets and threads, and its client.

#include "services/cache/store/source/testing/fake_block_source.h"
#include "tests/unit/cache/serve/local/local_fixture.h"

namespace cairn::cache::testing {

inline constexpr uint8_t kOk = 0;
inline uint8_t Code(StatusCode code) { return static_cast<uint8_t>(code); }

class LocalServerSessionTest : public ::testing::Test {
 protected:
  explicit LocalServerSessionTest(bool with_source = false)
      : node_(8, &clock_, disk_.get(), with_source ? &source_ : nullptr, &timers_) {}

  // One client of the tenant: its session at the node, and its end of the ring.
  struct Client {
    Client(LocalServerSessionTest* test, const std::string& tenant, uint64_t quota = 64 << 20,
           uint32_t scratch_bytes = 256 << 10, bool may_write = true) {
      int fd = -1;
      const shm::RingShape shape{.entries = 8, .scratch_bytes = scratch_bytes};
      auto node = shm::RingMemory::Create(shape, &fd);
      auto client = shm::RingMemory::Map(fd, shape);
      close(fd);
      EXPECT_OK(node);
      EXPECT_OK(client);
      header = &client->header();
      id = *test->node_.engine->OpenSession("test");
      session = std::make_unique<LocalServerSession>(
          LocalServerSession::Services{.engine = test->node_.engine.get(),
                                       .host = test->node_.host.get(),
                                       .clock = &test->clock_,
                                       .stats = &test->stats_,
                                       .buffers = &test->buffers_,
                                       .observer = &test->times_,
                                       .executor = &test->long_calls_,
                                       .memory = test->memory_},
          LocalServerSessionOptions{.session = id,
                                    .owner = *test->node_.host->AddOwner(tenant),
                                    .tenant = tenant,
                                    .may_write = may_write,
                                    .quota_bytes = quota},
          shm::NodeRing(*std::move(node)), &segments);
      session->SendAllSegments();
      call = std::make_unique<RingCaller>(shm::ClientRing(*std::move(client)), [this] {
        Status why;
        if (serves) serves = session->Serve(8, &why);
        if (!serves) error = Message(why);
      });
    }
    bool serves = true;
    std::string error;
    MappedSegments segments;
    shm::RingHeader* header = nullptr;
    SessionId id = 0;
    std::unique_ptr<LocalServerSession> session;
    std::unique_ptr<RingCaller> call;
  };

  // Three blocks of tenant a that lie on disk only.
  void PutOnDiskOnly(Client& client) {
    for (uint64_t n = 1; n <= 3; ++n) {
      ASSERT_EQ(
          client.call->Put(client.segments, a_, n, n == 1 ? std::nullopt : std::optional(n - 1)),
          kOk);
    }
    clock_.Advance(std::chrono::seconds(2));
    node_.engine->Tick();
    node_.executor.RunAll();
    // Newer blocks of the tenant push them out of the host tier.
    const SessionId network = *node_.engine->OpenSession("network");
    for (uint64_t n = 100; n < 1200; ++n) {
      node_.Store(network, a_, n, std::nullopt);
      if (n % 50 == 0) {
        clock_.Advance(std::chrono::seconds(2));
        node_.engine->Tick();
        node_.executor.RunAll();
      }
    }
  }
  void ExpectBlock(Client& client, const shm::PlaceEntry& place, uint64_t n) {
    ASSERT_EQ(place.state, static_cast<uint8_t>(shm::PlaceState::kHere)) << n;
    const Layout layout = TestSpec().layout;
    const auto expected = TestPart(layout, n, layout.WholeRect());
    const auto bytes = client.segments.At(place.segment, place.offset, place.bytes);
    ASSERT_EQ(bytes.size(), expected.size());
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), expected.begin())) << n;
  }

  // The times of answers, by call.
  struct Times final : LocalObserver {
    void OnAnswer(shm::Op op, Duration took) override { answers.emplace_back(op, took); }
    void OnMatch(const MatchResult&, size_t, uint32_t) override {}
    void OnMatchPools(const MatchResult&, const JointQuestion&, uint64_t) override {}
    std::vector<std::pair<shm::Op, Duration>> answers;
  };

  FakeClock clock_;
  std::unique_ptr<FakeTier> disk_ =
      std::make_unique<FakeTier>(FakeTier::Options{.capacity_bytes = 64 << 20});
  FakeBlockSource source_{&clock_};
  Timers timers_{&clock_};
  LocalEngine node_;
  LocalStats stats_;
  LocalBuffers buffers_;
  Times times_;
  ManualExecutor long_calls_;        // Runs matches of many keys.
  MemoryAccount* memory_ = nullptr;  // Their keys are charged to it.
  const Fingerprint a_ = node_.Open("a"), b_ = node_.Open("b");
};

}  // namespace cairn::cache::testing
