// The same-node protocol without a node: rings, messages, and what hostile bytes do to them.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "common/status/matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "protocol/shm/decode.h"
#include "protocol/shm/ring.h"
#include "protocol/shm/socket.h"

namespace cairn::shm {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

auto Fails(StatusCode code) { return cairn::testing::StatusIs(code, ::testing::_); }

constexpr RingShape kShape{.entries = 4, .scratch_bytes = 8192};

struct Ends {
  NodeRing node;
  ClientRing client;
  RingHeader* header;
};

Ends MakeRing(const RingShape& shape = kShape) {
  int fd = -1;
  auto node = RingMemory::Create(shape, &fd);
  EXPECT_TRUE(node.ok());
  auto client = RingMemory::Map(fd, shape);
  EXPECT_TRUE(client.ok());
  close(fd);
  RingHeader* header = &client->header();
  return {NodeRing(std::move(*node)), ClientRing(std::move(*client)), header};
}

Submission Exists(uint64_t cookie) {
  Submission s;
  s.cookie = cookie;
  s.op = static_cast<uint8_t>(Op::kExists);
  s.input = {0, 2 * kKeyBytes};
  s.output = {4096, 2};
  return s;
}

TEST(ShmRing, CarriesSubmissionsAndCompletionsInOrder) {
  Ends ring = MakeRing();
  for (uint64_t round = 0; round < 100; ++round) {
    for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(ring.client.Submit(Exists(round * 4 + i)));
    EXPECT_FALSE(ring.client.Submit(Exists(0))) << "the queue is full";
    Submission s;
    for (uint64_t i = 0; i < 4; ++i) {
      ASSERT_EQ(ring.node.TakeOne(&s), NodeRing::Take::kOne);
      EXPECT_EQ(s.cookie, round * 4 + i);
      Completion c;
      c.cookie = s.cookie;
      c.op = s.op;
      ring.node.Complete(c);
    }
    EXPECT_EQ(ring.node.TakeOne(&s), NodeRing::Take::kNone);
    Completion c;
    EXPECT_EQ(ring.client.ReapOne(&c), ClientRing::Reap::kNone) << "not published yet";
    ring.node.Publish();
    for (uint64_t i = 0; i < 4; ++i) {
      ASSERT_EQ(ring.client.ReapOne(&c), ClientRing::Reap::kOne);
      EXPECT_EQ(c.cookie, round * 4 + i);
    }
  }
}

TEST(ShmRing, NodeTakesNoMoreThanItCanAnswer) {
  Ends ring = MakeRing();
  Submission s;
  // A client that reaps nothing but goes on to submit.
  for (int i = 0; i < 4; ++i) {
    ring.client.Submit(Exists(1));
    ASSERT_EQ(ring.node.TakeOne(&s), NodeRing::Take::kOne);
    ring.node.Complete({});
  }
  ring.node.Publish();
  ring.header->submission_tail.store(6);
  EXPECT_EQ(ring.node.TakeOne(&s), NodeRing::Take::kNone);
  EXPECT_FALSE(ring.node.HasWork()) << "else the node would spin on it";
}

TEST(ShmRing, CountersThatNoHonestClientHasBreakIt) {
  Submission s;
  {
    Ends ring = MakeRing();
    ring.header->submission_tail.store(5);
    EXPECT_EQ(ring.node.TakeOne(&s), NodeRing::Take::kBroken);
  }
  {
    Ends ring = MakeRing();
    ring.header->submission_tail.store(1);
    ring.header->completion_head.store(1);
    EXPECT_EQ(ring.node.TakeOne(&s), NodeRing::Take::kBroken);
  }
  {
    Ends ring = MakeRing();
    Completion c;
    ring.header->completion_tail.store(1);
    EXPECT_EQ(ring.client.ReapOne(&c), ClientRing::Reap::kBroken) << "nothing was submitted";
  }
}

TEST(ShmRing, WakesAClientThatSleeps) {
  Ends ring = MakeRing();
  ASSERT_TRUE(ring.client.Submit(Exists(7)));
  std::thread node([&] {
    while (ring.header->client_waiting.load() == 0) std::this_thread::yield();
    Submission s;
    ASSERT_EQ(ring.node.TakeOne(&s), NodeRing::Take::kOne);
    ring.node.Complete({});
    ring.node.Publish();
  });
  EXPECT_TRUE(
      ring.client.Wait(Duration(0), std::chrono::steady_clock::now() + milliseconds(120'000)));
  node.join();
}

TEST(ShmRing, WaitEndsAtItsDeadline) {
  Ends ring = MakeRing();
  EXPECT_FALSE(ring.client.Wait(Duration(0), std::chrono::steady_clock::now() + milliseconds(2)));
  EXPECT_EQ(ring.header->client_waiting.load(), 0u);
}

TEST(ShmRing, OneClientCallRingsTheDoorbellOfASleepingNode) {
  Ends ring = MakeRing();
  EXPECT_FALSE(ring.client.MustRing());
  EXPECT_FALSE(ring.node.GoToSleep());
  ASSERT_TRUE(ring.client.Submit(Exists(1)));
  EXPECT_TRUE(ring.client.MustRing());
  EXPECT_FALSE(ring.client.MustRing());
  EXPECT_TRUE(ring.node.GoToSleep()) << "there is work";
}

TEST(ShmRing, CannotBeShrunkByItsClient) {
  int fd = -1;
  auto node = RingMemory::Create(kShape, &fd);
  ASSERT_TRUE(node.ok());
  EXPECT_NE(ftruncate(fd, 0), 0);
  close(fd);
}

TEST(ShmRing, ClientRefusesMemoryOfAnotherSize) {
  const int fd = memfd_create("test", MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(fd, static_cast<off_t>(kShape.bytes())), 0);
  EXPECT_THAT(RingMemory::Map(fd, kShape).status(), Fails(StatusCode::kFailedPrecondition));
  ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(RingMemory::Map(fd, kShape).ok());
  EXPECT_FALSE(RingMemory::Map(fd, {.entries = 8, .scratch_bytes = 65536}).ok());
  EXPECT_FALSE(RingMemory::Map(fd, {.entries = 3, .scratch_bytes = 8192}).ok());
  close(fd);
}

PoolQuestion TwoPools() {
  PoolQuestion question{.most_tokens = 4096, .step_tokens = 32, .pools = 2, .all = 1};
  question.entries[0] = {.pool = 0};
  question.entries[1] = {.pool = 5, .tail_tokens = 511, .proof_blocks = 1};
  return question;
}

TEST(ShmDecode, AQuestionOverPoolsIsCheckedInEveryByte) {
  const auto question = DecodeQuestion(TwoPools());
  ASSERT_OK(question.status());
  ASSERT_EQ(question->pools.size(), 2u);
  EXPECT_EQ(question->pools[1].pool, 5u);
  EXPECT_EQ(question->pools[1].tail_tokens, 511u);
  EXPECT_EQ(question->most_tokens, 4096u);
  EXPECT_TRUE(question->all);
  const auto refused = [](auto change) {
    PoolQuestion bad = TwoPools();
    change(bad);
    return Message(DecodeQuestion(bad).status());
  };
  EXPECT_THAT(refused([](PoolQuestion& q) { q.pools = 0; }), HasSubstr("'pools': got 0"));
  EXPECT_THAT(refused([](PoolQuestion& q) { q.pools = 65536; }), HasSubstr("'pools': got 65536"));
  EXPECT_THAT(refused([](PoolQuestion& q) { q.all = 2; }), HasSubstr("not used"));
  EXPECT_THAT(refused([](PoolQuestion& q) { q.reserved[2] = 1; }), HasSubstr("not used"));
  EXPECT_THAT(refused([](PoolQuestion& q) { q.entries[1].reserved = 1; }), HasSubstr("not used"));
  EXPECT_THAT(refused([](PoolQuestion& q) { q.entries[31].tail_tokens = 1; }),
              HasSubstr("not used"));
}

TEST(ShmDecode, AMatchOverPoolsHasItsQuestionBeforeTheKeys) {
  Submission s;
  s.op = static_cast<uint8_t>(Op::kMatchPools);
  s.input = {0, sizeof(PoolQuestion) + 3 * kKeyBytes};
  s.output = {4096, sizeof(PoolAnswer)};
  const auto decoded = Decode(s, 8192);
  ASSERT_OK(decoded.status());
  EXPECT_EQ(decoded->count, 3u);
  s.input.bytes = sizeof(PoolQuestion);
  EXPECT_THAT(Message(Decode(s, 8192).status()), HasSubstr("'input'"));
  s.input.bytes = 32;
  EXPECT_THAT(Message(Decode(s, 8192).status()), HasSubstr("'input'"));
  s.input.bytes = sizeof(PoolQuestion) + 33;
  EXPECT_THAT(Message(Decode(s, 8192).status()), HasSubstr("'input'"));
  s.input.bytes = sizeof(PoolQuestion) + 32;
  s.output.bytes = sizeof(PoolAnswer) - 8;
  EXPECT_THAT(Message(Decode(s, 8192).status()), HasSubstr("'output'"));
  s.output.bytes = sizeof(PoolAnswer);
  s.flags = kPlaces;
  EXPECT_THAT(Message(Decode(s, 8192).status()), HasSubstr("'flags'"));
}

TEST(ShmDecode, AnAnswerOverPoolsThatContradictsItselfIsDamage) {
  const auto output = [](auto change, size_t bits) {
    PoolAnswer answer{.restorable_tokens = 64, .runs = 2, .limiting_pool = 5, .bits_bytes = 3};
    answer.entries[0] = {.pool = 0, .first_block = 0, .blocks = 4};
    answer.entries[1] = {.pool = 5, .first_block = 3, .blocks = 1};
    change(answer);
    std::vector<std::byte> bytes(sizeof(answer) + bits, std::byte{7});
    std::memcpy(bytes.data(), &answer, sizeof(answer));
    return bytes;
  };
  const auto good = DecodeAnswer(output([](PoolAnswer&) {}, 3), 5);
  ASSERT_OK(good.status());
  EXPECT_EQ(good->restorable_tokens, 64u);
  EXPECT_EQ(good->limiting_pool, 5u);
  EXPECT_EQ(good->restorable, std::string(3, 7));
  ASSERT_EQ(good->pool_runs.size(), 2u);
  EXPECT_EQ(good->pool_runs[1], (PoolRun{5, 3, 1}));
  EXPECT_THAT(DecodeAnswer(output([](PoolAnswer&) {}, 2), 5).status(),
              Fails(StatusCode::kDataLoss));
  EXPECT_THAT(DecodeAnswer(output([](PoolAnswer&) {}, 3), 4).status(),
              Fails(StatusCode::kDataLoss));
  EXPECT_THAT(DecodeAnswer(output([](PoolAnswer& a) { a.runs = 33; }, 3), 5).status(),
              Fails(StatusCode::kDataLoss));
  EXPECT_THAT(DecodeAnswer({}, 0).status(), Fails(StatusCode::kDataLoss));
}

TEST(ShmDecode, NamesWhatIsWrong) {
  const auto refused = [](auto change) {
    Submission s = Exists(1);
    change(s);
    return Message(Decode(s, 8192).status());
  };
  EXPECT_EQ(refused([](Submission&) {}), "");
  EXPECT_THAT(refused([](Submission& s) { s.op = 0; }), HasSubstr("'op'"));
  EXPECT_THAT(refused([](Submission& s) { s.op = kLastOp + 1; }), HasSubstr("'op'"));
  EXPECT_THAT(refused([](Submission& s) { s.flags = 1; }), HasSubstr("'flags'"));
  EXPECT_THAT(refused([](Submission& s) { s.input.offset = 8192; }), HasSubstr("'input'"));
  EXPECT_THAT(refused([](Submission& s) { s.input = {0xfffffff8u, 64}; }), HasSubstr("'input'"));
  EXPECT_THAT(refused([](Submission& s) { s.input = {0, 0}; }), HasSubstr("'input'"));
  EXPECT_THAT(refused([](Submission& s) { s.input.bytes = 33; }), HasSubstr("'input'"));
  EXPECT_THAT(refused([](Submission& s) { s.output.bytes = 1; }), HasSubstr("'output'"));
  EXPECT_THAT(refused([](Submission& s) { s.output.offset = 4; }), HasSubstr("multiple of 8"));
}

TEST(ShmDecode, TakesNoPlaceOutsideItsSegment) {
  PlaceEntry place;
  place.bytes = 100;
  place.layer_end = place.head_end = 1;
  place.offset = 4096;
  EXPECT_OK(CheckPlace(place, 8192));
  place.offset = 8100;
  EXPECT_THAT(CheckPlace(place, 8192), Fails(StatusCode::kDataLoss));
  place.offset = UINT64_MAX;
  EXPECT_THAT(CheckPlace(place, 8192), Fails(StatusCode::kDataLoss));
  place.offset = 0;
  place.state = 9;
  EXPECT_THAT(CheckPlace(place, 8192), Fails(StatusCode::kDataLoss));
  Grant grant;
  grant.reservation = 1;
  grant.offset = 4096;
  EXPECT_OK(CheckGrant(grant, 4096, 8192));
  EXPECT_THAT(CheckGrant(grant, 4097, 8192), Fails(StatusCode::kDataLoss));
}

TEST(ShmDecode, SurvivesRandomBytes) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200'000; ++i) {
    Submission s;
    auto* words = reinterpret_cast<uint64_t*>(&s);
    for (size_t w = 0; w < sizeof(s) / 8; ++w) words[w] = random() >> (random() % 64);
    const auto decoded = Decode(s, 8192);
    if (!decoded.ok()) continue;
    EXPECT_LE(uint64_t{decoded->input.offset} + decoded->input.bytes, 8192u);
    EXPECT_LE(uint64_t{decoded->output.offset} + decoded->output.bytes, 8192u);
  }
}

TEST(ShmSocket, CarriesMessagesWithDescriptors) {
  const std::string path = ::testing::TempDir() + "shm_test." + std::to_string(getpid());
  auto listening = Listen(path, 0600);
  ASSERT_OK(listening.status());
  EXPECT_THAT(Listen(path, 0600).status(), Fails(StatusCode::kFailedPrecondition));
  auto client = Dial(path);
  ASSERT_OK(client.status());
  Descriptor node(accept4(listening->get(), nullptr, nullptr, SOCK_NONBLOCK));
  ASSERT_TRUE(node.valid());
  EXPECT_EQ(*PeerUid(node.get()), getuid());

  Hello hello;
  hello.header.type = static_cast<uint16_t>(MessageType::kHello);
  SetText(hello.tenant, "team-a");
  ASSERT_OK(Send(client->get(), AsBytes(hello)));
  auto got = ReceiveBy(node.get(), std::chrono::steady_clock::now() + milliseconds(120'000));
  ASSERT_OK(got.status());
  const auto decoded = DecodeHello(got->message);
  ASSERT_OK(decoded.status());
  EXPECT_EQ(decoded->tenant, "team-a");

  Segments segments;
  segments.header.type = static_cast<uint16_t>(MessageType::kSegments);
  segments.count = 1;
  segments.entries[0] = {.id = 3, .flags = 0, .bytes = 4096};
  const int fd = memfd_create("test", 0);
  ASSERT_OK(Send(node.get(), AsBytes(segments), {&fd, 1}));
  close(fd);
  got = ReceiveBy(client->get(), std::chrono::steady_clock::now() + milliseconds(120'000));
  ASSERT_OK(got.status());
  EXPECT_EQ(got->descriptors.size(), 1u);
  EXPECT_OK(DecodeSegments(got->message, got->descriptors.size()).status());
  EXPECT_THAT(DecodeSegments(got->message, 0).status(), Fails(StatusCode::kDataLoss));

  EXPECT_THAT(Receive(client->get()).status(), Fails(StatusCode::kNotFound));
  node.Reset();
  got = ReceiveBy(client->get(), std::chrono::steady_clock::now() + milliseconds(120'000));
  EXPECT_TRUE(!got.ok() || got->message.empty()) << "hung up";
  listening->Reset();
  EXPECT_OK(Listen(path, 0600).status()) << "a dead socket is replaced";
  unlink(path.c_str());
}

}  // namespace
}  // namespace cairn::shm
