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
