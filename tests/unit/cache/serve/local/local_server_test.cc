// The server with its socket and its thread: who gets in, who is thrown out, and what stays of
// either.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <thread>

#include "tests/unit/cache/serve/local/local_fixture.h"

namespace cairn::cache::testing {
namespace {

using shm::Op;
using ::testing::_;
using ::testing::HasSubstr;

TimePoint Soon() { return SteadyClock::Get().Now() + std::chrono::seconds(60); }

template <typename Predicate>
bool Eventually(Predicate predicate) {
  const TimePoint deadline = Soon();
  while (!predicate()) {
    if (SteadyClock::Get().Now() >= deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

class LocalServerTest : public ::testing::Test {
 protected:
  void Start(LocalServerOptions options = {}) {
    options.path = ::testing::TempDir() + "local_server_test." + std::to_string(getpid());
    path_ = options.path;
    auto server = LocalServer::Start(options, {.engine = node_.engine.get(),
                                               .host = node_.host.get(),
                                               .clock = &SteadyClock::Get(),
                                               .observer = nullptr,
                                               .memory = memory_});
    ASSERT_OK(server);
    server_ = *std::move(server);
  }
  void TearDown() override { server_.reset(); }

  MemoryAccount* memory_ = nullptr;  // Nothing bounds it.

  struct Client {
    shm::Descriptor socket;
    MappedSegments segments;
    std::unique_ptr<RingCaller> call;

    // Calls, and takes in segments that were announced.
    void Pump() {
      if (call->ring().MustRing()) Ring();
    }
    void Ring() {
      shm::Doorbell doorbell;
      doorbell.header.type = static_cast<uint16_t>(shm::MessageType::kDoorbell);
      (void)shm::Send(socket.get(), shm::AsBytes(doorbell));
    }
    void TakeSegments() {
      for (;;) {
        auto got = shm::Receive(socket.get());
        if (!got.ok() || got->message.empty()) return;
        auto decoded = shm::DecodeSegments(got->message, got->descriptors.size());
        if (!decoded.ok()) return;
        for (uint32_t i = 0; i < decoded->count; ++i) {
          segments.Add(decoded->entries[i], got->descriptors[i].Release());
        }
      }
    }
    Result<shm::Closing> WaitClosing() {
      for (;;) {
        CAIRN_ASSIGN_OR_RETURN(const shm::Received got, shm::ReceiveBy(socket.get(), Soon()));
        if (got.message.empty()) return Errorf(StatusCode::kUnavailable, "hung up");
        CAIRN_ASSIGN_OR_RETURN(const shm::MessageType type, shm::TypeOf(got.message));
        if (type == shm::MessageType::kClosing) return shm::As<shm::Closing>(got.message);
      }
    }
  };

  Status SayHello(int socket, const LocalToken& token, const std::string& tenant) {
    shm::Hello hello;
    hello.header.type = static_cast<uint16_t>(shm::MessageType::kHello);
    std::memcpy(hello.token, token.data(), token.size());
    shm::SetText(hello.tenant, tenant);
    return shm::Send(socket, shm::AsBytes(hello));
  }
  Result<std::unique_ptr<Client>> Connect(const LocalToken& token, const std::string& tenant) {
    auto client = std::make_unique<Client>();
    CAIRN_ASSIGN_OR_RETURN(client->socket, shm::Dial(path_));
    CAIRN_RETURN_IF_ERROR(SayHello(client->socket.get(), token, tenant));
    CAIRN_ASSIGN_OR_RETURN(shm::Received got, shm::ReceiveBy(client->socket.get(), Soon()));
    CAIRN_ASSIGN_OR_RETURN(const shm::Welcome welcome,
                           shm::DecodeWelcome(got.message, got.descriptors.size()));
    CAIRN_ASSIGN_OR_RETURN(
        shm::RingMemory memory,
        shm::RingMemory::Map(got.descriptors[0].get(), {welcome.entries, welcome.scratch_bytes}));
    client->call = std::make_unique<RingCaller>(shm::ClientRing(std::move(memory)),
                                                [raw = client.get()] { raw->Pump(); });
    return client;
  }
  LocalToken Admit(const std::string& tenant = {}) {
    return server_->Admit(*node_.engine->OpenSession("test", tenant), tenant);
  }

  LocalEngine node_{8};
  const Fingerprint a_ = node_.Open("a"), b_ = node_.Open("b");
  std::string path_;
  std::unique_ptr<LocalServer> server_;
};

TEST_F(LocalServerTest, ServesCallsOverTheRing) {
  Start();
  auto client = Connect(Admit(), "a");
  ASSERT_OK(client);
  for (uint64_t n = 1; n <= 3; ++n) {
    const shm::Grant grant =
        (*client)->call->Reserve(a_, n, n == 1 ? std::nullopt : std::optional(n - 1));
    ASSERT_EQ(grant.code, 0);
    (*client)->TakeSegments();
    const auto bytes = TestPart(TestSpec().layout, n, TestSpec().layout.WholeRect());
    const auto room = (*client)->segments.At(grant.segment, grant.offset, bytes.size());
    std::memcpy(room.data(), bytes.data(), bytes.size());
    ASSERT_EQ((*client)->call->Commit(grant.reservation), 0);
  }
  const shm::Submission s = (*client)->call->MatchCall(a_, TestKeys(1, 3));
  const shm::Completion match = (*client)->call->Call(s);
  EXPECT_EQ(match.matched, 3u);
  EXPECT_EQ(server_->stats().sessions.load(), 1u);
  EXPECT_GT(server_->stats().read_bytes.load(), 0u);
  EXPECT_EQ(server_->stats().read_bytes.load(), server_->stats().written_bytes.load());
}

TEST_F(LocalServerTest, RefusesWrongTokensAndWrongMessages) {
  Start();
  EXPECT_THAT(Connect(LocalToken{}, "a").status(),
              StatusIs(StatusCode::kUnauthenticated, HasSubstr("token")));
  EXPECT_THAT(Connect(Admit(), "").status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'tenant'")));
  auto socket = shm::Dial(path_);
  ASSERT_OK(socket);
  ASSERT_OK(shm::Send(socket->get(), std::as_bytes(std::span("nonsense"))));
  auto got = shm::ReceiveBy(socket->get(), Soon());
  ASSERT_OK(got);
  EXPECT_THAT(shm::DecodeWelcome(got->message, 0).status(),
              StatusIs(StatusCode::kInvalidArgument, _));
  const LocalToken token = Admit();
  EXPECT_FALSE(server_->Retire(token)) << "nobody came with it";
  EXPECT_THAT(Connect(token, "a").status(), StatusIs(StatusCode::kUnauthenticated, _));
  EXPECT_EQ(server_->stats().refused_sessions.load(), 4u);
}

// The claims of a Hello are checked against those of the session when it was opened.
TEST_F(LocalServerTest, AHelloMayNameTheSessionsTenantOnly) {
  Start();
  const LocalToken token = Admit("a");
  const auto lie = Connect(token, "b");
  EXPECT_THAT(lie.status(), StatusIs(StatusCode::kPermissionDenied, HasSubstr("'tenant'")));
  EXPECT_OK(Connect(token, "a"));
  // A session that named none, as clients of before, may still name any.
  EXPECT_OK(Connect(Admit(), "b"));
  EXPECT_EQ(server_->stats().refused_sessions.load(), 1u);
}

TEST_F(LocalServerTest, SessionsWithoutATenantCanBeRefused) {
  LocalServerOptions options;
  options.require_tenant = true;
  Start(options);
  EXPECT_THAT(Connect(Admit(), "a").status(),
              StatusIs(StatusCode::kPermissionDenied, HasSubstr("local.require_tenant")));
  EXPECT_OK(Connect(Admit("a"), "a"));
}

TEST_F(LocalServerTest, HangingUpEndsWhatTheSessionHolds) {
  Start();
  auto client = Connect(Admit(), "a");
  ASSERT_OK(client);
  ASSERT_EQ((*client)->call->Reserve(a_, 1, std::nullopt).code, 0);
  EXPECT_EQ(node_.engine->GetStats().reservations, 1u);
  client->reset();
  EXPECT_TRUE(Eventually([&] { return node_.engine->GetStats().reservations == 0; }));
  EXPECT_EQ(node_.engine->GetStats().sessions, 1u) << "the gRPC session goes on";
}

TEST_F(LocalServerTest, WhatIsHeldOutlivesTheGrpcSessionUntilTheClientIsGone) {
  Start();
  const LocalToken token = Admit();
  auto client = Connect(token, "a");
  ASSERT_OK(client);
  ASSERT_EQ((*client)->call->Reserve(a_, 1, std::nullopt).code, 0);
  ASSERT_TRUE(server_->Retire(token));
  const auto closing = (*client)->WaitClosing();
  ASSERT_OK(closing);
  EXPECT_EQ(closing->code, static_cast<uint32_t>(StatusCode::kUnavailable));
  EXPECT_EQ(node_.engine->GetStats().reservations, 1u) << "the client may still write there";
  // A half-closed socket is not the end either.
  shutdown((*client)->socket.get(), SHUT_WR);
  auto other = Connect(Admit(), "b");
  ASSERT_OK(other);
  EXPECT_EQ(node_.engine->GetStats().reservations, 1u);
  client->reset();
  EXPECT_TRUE(Eventually([&] { return node_.engine->GetStats().sessions == 1; }));
  EXPECT_EQ(node_.engine->GetStats().reservations, 0u);
}

TEST_F(LocalServerTest, NonsenseInTheRingClosesThatSessionAlone) {
  Start();
  auto good = Connect(Admit(), "a"), bad = Connect(Admit(), "a");
  ASSERT_OK(good);
  ASSERT_OK(bad);
  shm::Submission s = (*bad)->call->Make(Op::kMatch);
  s.op = 77;
  ASSERT_TRUE((*bad)->call->ring().Submit(s));
  (*bad)->Ring();
  const auto closing = (*bad)->WaitClosing();
  ASSERT_OK(closing);
  EXPECT_EQ(closing->code, static_cast<uint32_t>(StatusCode::kInvalidArgument));
  EXPECT_THAT(shm::Text(closing->text), HasSubstr("'op'"));
  EXPECT_EQ((*good)->call->Reserve(a_, 1, std::nullopt).code, 0);
  EXPECT_EQ(server_->stats().broken_sessions.load(), 1u);
}

TEST_F(LocalServerTest, NonsenseOnTheSocketClosesThatSessionAlone) {
  Start();
  auto good = Connect(Admit(), "a"), bad = Connect(Admit(), "a");
  ASSERT_OK(bad);
  const std::vector<std::byte> noise(700, std::byte{0xee});
  ASSERT_OK(shm::Send((*bad)->socket.get(), noise));
  EXPECT_OK((*bad)->WaitClosing());
  EXPECT_EQ((*good)->call->Reserve(a_, 1, std::nullopt).code, 0);
}

// Every file of this process that a client of tenant `a` was given, whatever it says and however
// often memory changes hands: none shows tenant `b`'s bytes, and none can be written but what was
// lent.
TEST_F(LocalServerTest, AnotherTenantsBytesAreOutOfReach) {
  Start();
  const SessionId network = *node_.engine->OpenSession("network");
  const LocalToken of_a = Admit("a");
  auto a = Connect(of_a, "a"), b = Connect(Admit("b"), "b");
  ASSERT_OK(a);
  ASSERT_OK(b);
  // The header's hash is in no other part.
  const auto needle = [](uint64_t n) {
    const auto part = TestPart(TestSpec().layout, n, TestSpec().layout.WholeRect());
    return std::string(reinterpret_cast<const char*>(part.data()) + 40, 8);
  };
  // Parts of blocks whose numbers differ by 256 are equal. So b's numbers are 0 to 99 modulo 256,
  // and a's 128 to 227.
  constexpr uint64_t kFirst = 4 * 256, kBlocks = 300;
  const auto numbers = [](uint64_t first) {
    std::vector<uint64_t> all;
    for (uint64_t i = 0; i < kBlocks; ++i) all.push_back(first + i / 100 * 256 + i % 100);
    return all;
  };
  const auto secrets_seen = [&](Client& client) {
    client.TakeSegments();
    std::vector<uint64_t> seen;
    for (const auto& [id, segment] : client.segments.segments) {
      const std::string_view all(reinterpret_cast<const char*>(segment.base), segment.bytes);
      for (uint64_t n = kFirst; n < kFirst + 100; ++n) {
        if (all.find(needle(n)) != std::string_view::npos) seen.push_back(n);
      }
    }
    return seen;
  };
  Fingerprint ns_b = b_;
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    // b fills most of the arena, over the network and in place, and is dropped; a takes its place.
    for (const uint64_t n : numbers(kFirst)) node_.Store(network, ns_b, n, std::nullopt);
    const std::vector<BlockKey> known = {TestKey(numbers(kFirst).back())};
    ASSERT_EQ((*b)->call->Call((*b)->call->MatchCall(ns_b, known)).matched, 1u);
    EXPECT_THAT(secrets_seen(**a), ::testing::IsEmpty());
    EXPECT_NE((*a)->call->Call((*a)->call->MatchCall(ns_b, known)).code, 0);
    b->reset();
    ASSERT_TRUE(Eventually([&] { return server_->stats().sessions.load() == 1; }));
    ASSERT_OK(node_.engine->DropNamespace(ns_b));
    node_.executor.RunAll();
    const uint64_t first = 128 + 256 * 40 * static_cast<uint64_t>(round + 1);
    for (const uint64_t n : numbers(first)) node_.Store(network, a_, n, std::nullopt);
    for (const uint64_t n : numbers(first)) {
      const BlockKey key = TestKey(n);
      const shm::Completion match = (*a)->call->Call((*a)->call->MatchCall(a_, {&key, 1}));
      if (match.lease != 0) (*a)->call->Release(match.lease);
    }
    // Rooms to write into, which are segments of another kind.
    for (uint64_t n = 1; n <= 20; ++n) {
      const auto grant = (*a)->call->Reserve(a_, first + 5000 + n, std::nullopt);
      if (grant.code == 0)
        (*a)->call->Call((*a)->call->WithIds(Op::kAbort, {&grant.reservation, 1}));
    }
    EXPECT_THAT(secrets_seen(**a), ::testing::IsEmpty());
    // A lie gets it nowhere either.
    EXPECT_THAT(Connect(of_a, "b").status(), StatusIs(StatusCode::kPermissionDenied, _));
    ns_b = node_.Open("b");
    b = Connect(Admit("b"), "b");
    ASSERT_OK(b);
  }
  EXPECT_GT((*a)->segments.segments.size(), 1u) << "memory changed hands";
  for (const auto& [id, segment] : (*a)->segments.segments) {
    if (segment.writable) continue;
    const std::string path = "/proc/self/fd/" + std::to_string(segment.fd);
    const int again = open(path.c_str(), O_RDWR);
    if (again < 0) continue;
    EXPECT_EQ(mmap(nullptr, segment.bytes, PROT_WRITE, MAP_SHARED, again, 0), MAP_FAILED);
    EXPECT_LT(pwrite(again, "x", 1, 0), 0);
    close(again);
  }
}

// The bytes in memory that a tenant gets were another tenant's until now, and nobody had seen it.
TEST_F(LocalServerTest, MemoryThatWasAnothersIsEmpty) {
  Start();
  const SessionId network = *node_.engine->OpenSession("network");
  const uint64_t part = TestPart(TestSpec().layout, 1, TestSpec().layout.WholeRect()).size();
  const uint64_t blocks = 7 * kSegmentBytes / (part + 4096);
  for (uint64_t n = 1; n <= blocks; ++n) node_.Store(network, b_, n, std::nullopt);
  ASSERT_OK(node_.engine->DropTenant("b"));
  node_.engine->Tick();
  node_.executor.RunAll();
  ASSERT_EQ(node_.host->GetStats().used_bytes, 0u);
  auto keep = Connect(Admit(), "a");
  ASSERT_OK(keep);
  // Sealed segments and lent ones.
  for (uint64_t n = 0; n < blocks / 2; ++n) {
    // Bytes of a block depend on its number modulo 256: none is like the victim's first ones.
    node_.Store(network, a_, 256 * (n / 100 + 8) + 100 + n % 100, std::nullopt);
  }
  ASSERT_EQ((*keep)->call->Reserve(a_, 2000, std::nullopt).code, 0);
  auto a = Connect(Admit(), "a");
  ASSERT_OK(a);
  ASSERT_TRUE(Eventually([&] {
    (*a)->TakeSegments();
    return (*a)->segments.segments.size() >= 4;
  }));
  for (const auto& [id, segment] : (*a)->segments.segments) {
    const std::string_view all(reinterpret_cast<const char*>(segment.base), segment.bytes);
    for (uint64_t n = 1; n <= blocks; ++n) {
      const auto secret = TestPart(TestSpec().layout, n, TestSpec().layout.WholeRect());
      const std::string_view needle(reinterpret_cast<const char*>(secret.data()) + 40, 8);
      ASSERT_EQ(all.find(needle), std::string_view::npos) << "block " << n;
      if (n == 20) break;
    }
  }
}

TEST_F(LocalServerTest, TenantsThatHangUpGiveTheirNamesBack) {
  Start();
  const LocalToken token = Admit();
  for (int i = 0; i < 300; ++i) {
    auto client = Connect(token, "tenant" + std::to_string(i));
    ASSERT_OK(client) << i;
    client->reset();
    ASSERT_TRUE(Eventually([&] { return server_->stats().sessions.load() == 0; }));
  }
  std::vector<std::unique_ptr<Client>> clients;
  Status refused;
  for (int i = 0; i < 257; ++i) {
    auto client = Connect(Admit(), "live" + std::to_string(i));
    if (!client.ok()) {
      refused = client.status();
      EXPECT_EQ(i, 256);
      break;
    }
    clients.push_back(*std::move(client));
  }
  EXPECT_THAT(refused, StatusIs(StatusCode::kResourceExhausted, HasSubstr("the limit is 256")));
  clients.clear();
  ASSERT_TRUE(Eventually([&] { return server_->stats().sessions.load() == 0; }));
  EXPECT_OK(Connect(Admit(), "another"));
}

TEST_F(LocalServerTest, AClientThatReadsNothingHarmsNobody) {
  Start();
  auto deaf = Connect(Admit(), "a"), good = Connect(Admit(), "a");
  ASSERT_OK(deaf);
  // As many submissions as fit, no reaping, doorbells without end.
  for (int i = 0; i < 16; ++i) {
    const BlockKey key = TestKey(1);
    (*deaf)->call->ring().Submit((*deaf)->call->MatchCall(a_, {&key, 1}));
  }
  for (int i = 0; i < 2000; ++i) (*deaf)->Ring();
  EXPECT_EQ((*good)->call->Reserve(a_, 1, std::nullopt).code, 0);
  EXPECT_EQ(server_->stats().broken_sessions.load(), 0u);
}

TEST_F(LocalServerTest, AThousandIdleSessionsAreSmall) {
  LocalServerOptions options;
  options.max_sessions = 2000;
  Start(options);
  const LocalToken warm = Admit();
  auto first = Connect(warm, "a");
  ASSERT_OK(first);
  const auto resident = [] {
    // The memory of this process, both ends: the node's share is less.
    FILE* file = fopen("/proc/self/statm", "r");
    long size = 0, pages = 0;
    EXPECT_EQ(fscanf(file, "%ld %ld", &size, &pages), 2);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
  };
  const long before = resident();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 1000; ++i) {
    auto session = node_.engine->OpenSession("idle");
    if (!session.ok()) break;
    auto client = Connect(server_->Admit(*session), "a");
    ASSERT_OK(client) << i;
    clients.push_back(*std::move(client));
  }
  ASSERT_EQ(clients.size(), 1000u);
  const long each = (resident() - before) / 1000;
  RecordProperty("bytes_per_session", static_cast<int>(each));
  EXPECT_LE(each, 32 << 10);
  EXPECT_EQ((*first)->call->Reserve(a_, 1, std::nullopt).code, 0);
  clients.clear();
  EXPECT_TRUE(Eventually([&] { return server_->stats().sessions.load() == 1; }));
}

// Rings are charged to the node's account before they are made.
TEST_F(LocalServerTest, RingsBeyondTheMemoryOfSessionsAreRefused) {
  LocalServerOptions options;
  MemoryAccount::Bounds bounds = MemoryAccount::Unbounded();
  bounds[static_cast<size_t>(MemoryItem::kSessions)] = 2 * options.ring.bytes();
  MemoryAccount memory(bounds);
  memory_ = &memory;
  Start(options);
  auto one = Connect(Admit(), "a"), two = Connect(Admit(), "a");
  ASSERT_OK(one);
  ASSERT_OK(two);
  EXPECT_EQ(memory.used(MemoryItem::kSessions), 2 * options.ring.bytes());
  EXPECT_THAT(Connect(Admit(), "a").status(),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("limits.session_memory")));
  one->reset();
  EXPECT_TRUE(Eventually([&] { return Connect(Admit(), "a").ok(); }));
  server_.reset();
  EXPECT_EQ(memory.used(MemoryItem::kSessions), 0u);
}

TEST_F(LocalServerTest, SessionsOverTheLimitAreRefused) {
  LocalServerOptions options;
  options.max_sessions = 2;
  Start(options);
  auto one = Connect(Admit(), "a"), two = Connect(Admit(), "a");
  ASSERT_OK(two);
  EXPECT_THAT(Connect(Admit(), "a").status(), StatusIs(StatusCode::kResourceExhausted, _));
  one->reset();
  EXPECT_TRUE(Eventually([&] { return Connect(Admit(), "a").ok(); }));
}

// Without a descriptor for those who connect, the server tries again now and then. It must not be
// told of them at every turn, which would cost a core.
TEST_F(LocalServerTest, ANodeWithoutDescriptorsTakesConnectionsLater) {
  Start();
  const LocalToken token = Admit();
  const shm::Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(socket.valid());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const TimePoint since = SteadyClock::Get().Now();
  const bool connected =
      connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  const bool tried = Eventually([&] { return server_->stats().failed_accepts.load() >= 3; });
  const uint64_t failed = server_->stats().failed_accepts.load();
  const auto ticks = (SteadyClock::Get().Now() - since) / std::chrono::milliseconds(100);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(connected);
  EXPECT_TRUE(tried);
  EXPECT_LE(failed, static_cast<uint64_t>(ticks) + 2);
  ASSERT_OK(SayHello(socket.get(), token, "a"));
  EXPECT_OK(shm::ReceiveBy(socket.get(), Soon()));
}

TEST_F(LocalServerTest, EndingTheServerTellsItsClients) {
  Start();
  auto client = Connect(Admit(), "a");
  ASSERT_OK(client);
  server_.reset();
  const auto closing = (*client)->WaitClosing();
  ASSERT_OK(closing);
  EXPECT_FALSE(shm::Dial(path_).ok());
}

}  // namespace
}  // namespace cairn::cache::testing
