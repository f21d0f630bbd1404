// Blocks on a GPU for clients of the same machine: who gets chunks, what they see there, and how
// long the chunks stay theirs.

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "services/cache/store/tier/device/device_tier.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/unit/cache/serve/local/local_fixture.h"

namespace cairn::cache::testing {
namespace {

using shm::PlaceState;

constexpr uint64_t kChunk = 128 << 10;  // Six blocks.

class LocalChunksTest : public ::testing::Test {
 protected:
  struct Client {
    Client(LocalChunksTest* test, const std::string& tenant) {
      int fd = -1;
      const shm::RingShape shape{.entries = 8, .scratch_bytes = 256 << 10};
      auto node = shm::RingMemory::Create(shape, &fd);
      auto client = shm::RingMemory::Map(fd, shape);
      close(fd);
      EXPECT_OK(node);
      EXPECT_OK(client);
      session = std::make_unique<LocalServerSession>(
          LocalServerSession::Services{.engine = test->node_.engine.get(),
                                       .host = test->node_.host.get(),
                                       .clock = &test->clock_,
                                       .stats = &test->stats_,
                                       .buffers = &test->buffers_,
                                       .devices = test->tier_.get(),
                                       .left = test->left_.get()},
          LocalServerSessionOptions{.session = *test->node_.engine->OpenSession("test"),
                                    .owner = *test->node_.host->AddOwner(tenant),
                                    .tenant = tenant,
                                    .quota_bytes = 64 << 20},
          shm::NodeRing(*std::move(node)), &segments);
      call = std::make_unique<RingCaller>(shm::ClientRing(*std::move(client)), [this] {
        Status why;
        EXPECT_TRUE(session->Serve(8, &why)) << ToString(why);
      });
    }
    MappedSegments segments;
    std::unique_ptr<LocalServerSession> session;
    std::unique_ptr<RingCaller> call;
  };

  void TearDown() override {
    left_.reset();
    node_.engine.reset();
    tier_.reset();
  }
  Tier* MakeTier(HostTier* host) {
    DeviceTierOptions options;
    options.pool = {.capacity_bytes = 2 * kChunk, .chunk_bytes = kChunk};
    options.poll_interval = Duration(0);
    tier_ =
        *DeviceTier::Create(options, {.driver = fake_.driver(), .host = host, .clock = &clock_});
    return tier_.get();
  }
  // Work that was posted, and copies.
  void RunAll() {
    for (int i = 0; i < 500; ++i) {
      node_.executor.RunAll();
      tier_->Step();
    }
  }
  // Stores n blocks of the namespace as a client over the network does, and reads them once.
  void PutOnDevice(const Fingerprint& ns, const std::string& tenant, uint64_t blocks) {
    const SessionId network = *node_.engine->OpenSession("network", tenant);
    for (uint64_t n = 1; n <= blocks; ++n) {
      node_.Store(network, ns, n, n == 1 ? std::nullopt : std::optional(n - 1));
    }
    const auto keys = TestKeys(1, blocks);
    const auto match =
        node_.engine->Match({.session = network, .fingerprint = ns, .keys = keys, .trace = {}});
    ASSERT_OK(match);
    RunAll();
    EXPECT_OK(node_.engine->Release(network, {&*match->lease, 1}));
    const auto found = node_.engine->Exists(ns, keys);
    ASSERT_OK(found);
    EXPECT_THAT(*found, ::testing::Each(std::optional(TierKind::kDevice)));
  }
  struct Matched {
    uint64_t lease = 0;
    std::vector<shm::PlaceEntry> places;
  };
  Matched Match(Client& client, const Fingerprint& ns, uint64_t blocks) {
    const shm::Submission s = client.call->MatchCall(ns, TestKeys(1, blocks));
    const shm::Completion done = client.call->Call(s);
    EXPECT_EQ(done.code, 0);
    EXPECT_EQ(done.matched, blocks);
    return {done.lease, client.call->Output<shm::PlaceEntry>(s, done)};
  }
  std::string Uuid() const { return tier_->uuid_of(0); }
  // As a client reads it: imports the chunk, and compares.
  void ExpectBlock(Client& client, const shm::PlaceEntry& place, uint64_t n) {
    ASSERT_EQ(place.state, static_cast<uint8_t>(PlaceState::kHere)) << n;
    ASSERT_EQ(place.flags, shm::kOnDevice) << n;
    ASSERT_TRUE(client.segments.chunks.contains(place.segment)) << "it is sent before its places";
    const MappedSegments::Chunk& chunk = client.segments.chunks.at(place.segment);
    EXPECT_EQ(shm::Text(chunk.entry.device.uuid), Uuid());
    const auto memory = fake_.Open()->Import(chunk.fd, chunk.entry.bytes);
    ASSERT_OK(memory);
    const Layout layout = TestSpec().layout;
    const auto expected = TestPart(layout, n, layout.WholeRect());
    ASSERT_EQ(place.bytes, expected.size());
    EXPECT_EQ(std::memcmp(reinterpret_cast<const void*>(memory->address() + place.offset),
                          expected.data(), expected.size()),
              0)
        << n;
  }

  FakeClock clock_;
  device::fake::FakeDevices fake_;
  std::unique_ptr<DeviceTier> tier_;
  LocalEngine node_{8,       &clock_, nullptr,
                    nullptr, nullptr, [this](HostTier* host) { return MakeTier(host); }};
  std::unique_ptr<LeftChunks> left_ = std::make_unique<LeftChunks>(tier_.get());
  LocalStats stats_;
  LocalBuffers buffers_;
  const Fingerprint a_ = node_.Open("a"), b_ = node_.Open("b");
};

TEST_F(LocalChunksTest, AClientThatCanImportReadsBlocksInTheirChunk) {
  Client client(this, "a");
  client.session->CanImport({{Uuid()}}, {});
  PutOnDevice(a_, "a", 3);
  const Matched matched = Match(client, a_, 3);
  ASSERT_EQ(matched.places.size(), 3u);
  for (uint64_t n = 1; n <= 3; ++n) ExpectBlock(client, matched.places[n - 1], n);
  EXPECT_EQ(client.segments.chunks.size(), 1u);
  EXPECT_EQ(tier_->GetDeviceStats()[0].shared_chunks, 1u);
  client.call->Release(matched.lease);
}

TEST_F(LocalChunksTest, OthersReadTheSameBlocksInHost) {
  Client none(this, "a"), other_gpu(this, "a");
  other_gpu.session->CanImport({{std::string("GPU-of-another-machine")}}, {});
  PutOnDevice(a_, "a", 2);
  for (Client* client : {&none, &other_gpu}) {
    const Matched matched = Match(*client, a_, 2);
    ASSERT_EQ(matched.places.size(), 2u);
    for (const shm::PlaceEntry& place : matched.places) {
      EXPECT_EQ(place.state, static_cast<uint8_t>(PlaceState::kHere));
      EXPECT_EQ(place.flags & shm::kOnDevice, 0);
    }
    EXPECT_TRUE(client->segments.chunks.empty());
    client->call->Release(matched.lease);
  }
}

TEST_F(LocalChunksTest, AChunkIsTheTenantsUntilTheClientThatHasItIsGone) {
  auto client = std::make_unique<Client>(this, "a");
  client->session->CanImport({{Uuid()}}, {});
  PutOnDevice(a_, "a", 3);
  const Matched matched = Match(*client, a_, 3);
  ExpectBlock(*client, matched.places[0], 1);
  // The client died: the node drops its session, and with it the lease.
  client.reset();
  EXPECT_EQ(tier_->GetDeviceStats()[0].shared_chunks, 0u);
  EXPECT_EQ(node_.engine->GetStats().leases, 0u);
}

// A process that does nothing, until it is told to end.
class Idler {
 public:
  Idler() : pid_(fork()) {
    if (pid_ == 0) {
      pause();
      _exit(0);
    }
  }
  ~Idler() { End(); }
  shm::Descriptor Watch() const {
    return shm::Descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  }
  void End() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_;
};

TEST_F(LocalChunksTest, AChunkStaysItsTenantsWhileAProcessThatImportedItLives) {
  Idler process;
  shm::Descriptor watched = process.Watch();
  ASSERT_TRUE(watched.valid());
  auto client = std::make_unique<Client>(this, "a");
  client->session->CanImport({{Uuid()}}, std::move(watched));
  PutOnDevice(a_, "a", 3);
  EXPECT_EQ(Match(*client, a_, 3).places.size(), 3u);
  const uint64_t before = tier_->GetDeviceStats()[0].memory_bytes;
  // It hangs up, and keeps its mapping.
  client.reset();
  EXPECT_EQ(left_->count(), 1u);
  left_->Look();
  EXPECT_EQ(tier_->GetDeviceStats()[0].shared_chunks, 1u);
  EXPECT_EQ(tier_->GetDeviceStats()[0].memory_bytes, before);
  process.End();
  left_->Look();
  EXPECT_EQ(left_->count(), 0u);
  EXPECT_EQ(tier_->GetDeviceStats()[0].shared_chunks, 0u);
}

TEST_F(LocalChunksTest, AReportedBlockLeavesTheDeviceAndNotHost) {
  Client client(this, "a");
  client.session->CanImport({{Uuid()}}, {});
  PutOnDevice(a_, "a", 2);
  const Matched matched = Match(client, a_, 2);
  {
    // As a client of the tenant that writes where it should read.
    const MappedSegments::Chunk& chunk = client.segments.chunks.at(matched.places[1].segment);
    const auto memory = fake_.Open()->Import(chunk.fd, chunk.entry.bytes);
    ASSERT_OK(memory);
    reinterpret_cast<uint8_t*>(memory->address() + matched.places[1].offset)[5000] ^= 1;
  }
  const shm::Completion done =
      client.call->Call(client.call->WithLease(shm::Op::kReport, matched.lease, 1, 2));
  EXPECT_EQ(done.code, 0);
  client.call->Release(matched.lease);
  const auto found = node_.engine->Exists(a_, TestKeys(1, 2));
  ASSERT_OK(found);
  EXPECT_EQ(found->at(0), TierKind::kDevice);
  EXPECT_EQ(found->at(1), TierKind::kHost);
}

TEST_F(LocalChunksTest, AClientThatDoesNotReadItsSocketIsSentElsewhere) {
  Client client(this, "a");
  client.session->CanImport({{Uuid()}}, {});
  PutOnDevice(a_, "a", 1);
  client.segments.refuse = true;
  const Matched matched = Match(client, a_, 1);
  EXPECT_EQ(matched.places[0].state, static_cast<uint8_t>(PlaceState::kElsewhere));
  EXPECT_EQ(tier_->GetDeviceStats()[0].shared_chunks, 0u);
  client.call->Release(matched.lease);
}

// The same over the real socket.
class LocalChunksSocketTest : public LocalChunksTest {
 protected:
  void SetUp() override {
    LocalServerOptions options;
    options.path = ::testing::TempDir() + "local_chunks_test." + std::to_string(getpid());
    auto server = LocalServer::Start(options, {.engine = node_.engine.get(),
                                               .host = node_.host.get(),
                                               .clock = &SteadyClock::Get(),
                                               .observer = nullptr,
                                               .memory = nullptr,
                                               .devices = tier_.get()});
    ASSERT_OK(server);
    server_ = *std::move(server);
  }
  void TearDown() override {
    server_.reset();
    LocalChunksTest::TearDown();
  }
  static TimePoint Soon() { return SteadyClock::Get().Now() + std::chrono::seconds(60); }
  // A client of tenant a that was greeted.
  void Connect() {
    socket_ = *shm::Dial(server_->path());
    const LocalToken token = server_->Admit(*node_.engine->OpenSession("test", "a"), "a");
    shm::Hello hello;
    hello.header.type = static_cast<uint16_t>(shm::MessageType::kHello);
    std::memcpy(hello.token, token.data(), token.size());
    shm::SetText(hello.tenant, "a");
    ASSERT_OK(shm::Send(socket_.get(), shm::AsBytes(hello)));
    auto got = shm::ReceiveBy(socket_.get(), Soon());
    ASSERT_OK(got);
    const auto welcome = shm::DecodeWelcome(got->message, got->descriptors.size());
    ASSERT_OK(welcome);
    EXPECT_EQ(welcome->chunk_bytes, kChunk);
    auto memory =
        shm::RingMemory::Map(got->descriptors[0].get(), {welcome->entries, welcome->scratch_bytes});
    ASSERT_OK(memory);
    call_ = std::make_unique<RingCaller>(shm::ClientRing(*std::move(memory)), [this] {
      if (!call_->ring().MustRing()) return;
      shm::Doorbell doorbell;
      doorbell.header.type = static_cast<uint16_t>(shm::MessageType::kDoorbell);
      (void)shm::Send(socket_.get(), shm::AsBytes(doorbell));
    });
  }
  void SayDevices(uint32_t count) {
    shm::Devices devices;
    devices.header.type = static_cast<uint16_t>(shm::MessageType::kDevices);
    devices.count = count;
    shm::SetText(devices.entries[0].uuid, Uuid());
    ASSERT_OK(shm::Send(socket_.get(), shm::AsBytes(devices)));
  }
  // The next message of this type; others are dropped.
  shm::Received WaitFor(shm::MessageType type) {
    for (;;) {
      auto got = shm::ReceiveBy(socket_.get(), Soon());
      EXPECT_OK(got);
      if (!got.ok() || got->message.empty()) return {};
      const auto is = shm::TypeOf(got->message);
      EXPECT_OK(is);
      if (is.ok() && *is == type) return *std::move(got);
    }
  }

  shm::Descriptor socket_;
  std::unique_ptr<RingCaller> call_;
  std::unique_ptr<LocalServer> server_;
};

TEST_F(LocalChunksSocketTest, TheDescriptorComesBeforeThePlace) {
  Connect();
  PutOnDevice(a_, "a", 2);
  SayDevices(1);
  // The node may serve the ring before it reads the socket.
  std::vector<shm::PlaceEntry> places;
  const TimePoint end = Soon();
  do {
    const shm::Submission s = call_->MatchCall(a_, TestKeys(1, 2));
    const shm::Completion done = call_->Call(s);
    ASSERT_EQ(done.matched, 2u);
    places = call_->Output<shm::PlaceEntry>(s, done);
    ASSERT_EQ(places.size(), 2u);
    ASSERT_LT(SteadyClock::Get().Now(), end);
  } while ((places[0].flags & shm::kOnDevice) == 0);
  const shm::Received got = WaitFor(shm::MessageType::kChunks);
  const auto chunks = shm::DecodeChunks(got.message, got.descriptors.size());
  ASSERT_OK(chunks);
  EXPECT_EQ(chunks->entries[0].id, places[0].segment);
  const auto memory = fake_.Open()->Import(got.descriptors[0].get(), chunks->entries[0].bytes);
  ASSERT_OK(memory);
  const auto expected = TestPart(TestSpec().layout, 2, TestSpec().layout.WholeRect());
  EXPECT_EQ(std::memcmp(reinterpret_cast<const void*>(memory->address() + places[1].offset),
                        expected.data(), expected.size()),
            0);
  EXPECT_EQ(server_->stats().shared_chunks.load(), 1u);
  EXPECT_EQ(tier_->GetDeviceStats()[0].shared_chunks, 1u);
  // The kernel closes the socket of a client that dies.
  socket_.Reset();
  while (tier_->GetDeviceStats()[0].shared_chunks > 0) {
    ASSERT_LT(SteadyClock::Get().Now(), end);
    std::this_thread::yield();
  }
}

TEST_F(LocalChunksSocketTest, WrongDevicesEndTheSession) {
  for (const uint32_t count : {0u, 17u}) {
    Connect();
    SayDevices(count);
    const shm::Received got = WaitFor(shm::MessageType::kClosing);
    ASSERT_FALSE(got.message.empty());
    EXPECT_THAT(shm::Text(shm::As<shm::Closing>(got.message).text),
                ::testing::HasSubstr("field 'count'"));
  }
  Connect();
  SayDevices(1);
  SayDevices(1);
  const shm::Received got = WaitFor(shm::MessageType::kClosing);
  ASSERT_FALSE(got.message.empty());
  EXPECT_THAT(shm::Text(shm::As<shm::Closing>(got.message).text), ::testing::HasSubstr("twice"));
}

}  // namespace
}  // namespace cairn::cache::testing
