// Matches over pools of more keys than the server's thread looks at.

#include "tests/unit/cache/serve/local/local_session_fixture.h"

namespace cairn::cache::testing {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMany = LocalServerSession::kPoolKeysHere + 1;
constexpr uint32_t kScratch = 1 << 20;

class LocalPoolsTest : public LocalServerSessionTest {
 protected:
  LocalPoolsTest() {
    NamespaceSpec spec = TestSpec();
    spec.tenant = "a";
    spec.layout.form =
        OpaqueLayout{.description = "engine", .pools = {{"full", 16, 1, 1000, true}}};
    layout_ = spec.layout;
    pooled_ = node_.engine->OpenNamespace(spec, false)->fingerprint;
  }

  // The first blocks of pool 0.
  void Store(SessionId session, size_t blocks) {
    for (size_t i = 0; i < blocks; ++i) {
      ReservePartRequest request;
      request.key = PoolKey(keys_[i], 0);
      request.part = {0, 1, 0, 1};
      const std::vector<uint64_t> lengths = {layout_.MaxPartBytesOf(0)};
      std::vector<std::byte> bytes(format::PartBytes(lengths), std::byte{9});
      format::SealPart(bytes, format::Codec::kOpaque, request.part,
                       static_cast<uint16_t>(layout_.BlockTokensOf(0)), lengths);
      request.bytes = bytes.size();
      const ReservationId id =
          *(*node_.engine->Reserve(session, pooled_, {&request, 1}, Duration(0)))[0];
      ASSERT_OK(node_.engine->Write(session, id, 0, bytes));
      ASSERT_OK((*node_.engine->Commit(session, {&id, 1}, ""))[0]);
    }
  }
  shm::Submission Submit(Client& client) {
    const shm::PoolQuestion question{.step_tokens = 16, .pools = 1, .all = 1};
    const shm::Submission s = client.call->MatchPoolsCall(pooled_, question, keys_);
    EXPECT_TRUE(client.call->ring().Submit(s));
    Serve(client);
    return s;
  }
  static void Serve(Client& client) {
    Status why;
    EXPECT_TRUE(client.session->Serve(8, &why)) << Message(why);
  }

  const std::vector<BlockKey> keys_ = TestKeys(1, kMany);
  Layout layout_;
  Fingerprint pooled_;
};

TEST_F(LocalPoolsTest, ManyKeysLetOthersBeServedMeanwhile) {
  Client client(this, "a", 64 << 20, kScratch);
  Client other(this, "a");
  Store(client.id, 3);
  const shm::Submission match = Submit(client);
  EXPECT_EQ(long_calls_.Pending(), 1u);
  EXPECT_TRUE(client.session->has_waiting());
  EXPECT_EQ(other.call->Put(other.segments, a_, 1, std::nullopt), kOk);
  client.session->RetryWaiting();
  EXPECT_TRUE(client.session->has_waiting());

  long_calls_.RunAll();
  client.session->RetryWaiting();
  EXPECT_FALSE(client.session->has_waiting());
  const shm::Completion done = client.call->Wait(match);
  ASSERT_EQ(done.code, kOk) << client.call->Text(match, done);
  const auto answer = shm::DecodeAnswer(client.call->Output<std::byte>(match, done), done.matched);
  ASSERT_OK(answer);
  EXPECT_EQ(answer->restorable_tokens, 48u);
  EXPECT_EQ(client.session->held_bytes(), done.bytes);
  client.call->Release(done.lease);
  EXPECT_EQ(client.session->held_bytes(), 0u);
}

TEST_F(LocalPoolsTest, KeysThatChangeMeanwhileChangeNothing) {
  Client client(this, "a", 64 << 20, kScratch);
  Store(client.id, 3);
  const shm::Submission match = Submit(client);
  std::ranges::fill(client.call->ring().scratch().subspan(match.input.offset, match.input.bytes),
                    std::byte{0});
  long_calls_.RunAll();
  client.session->RetryWaiting();
  EXPECT_EQ(client.call->Wait(match).matched, 3u);
}

TEST_F(LocalPoolsTest, ASessionHasOneAtATimeWithTheExecutor) {
  Client client(this, "a", 64 << 20, kScratch);
  Store(client.id, 3);
  const shm::Submission first = Submit(client), second = Submit(client);
  EXPECT_EQ(long_calls_.Pending(), 1u);
  long_calls_.RunAll();
  client.session->RetryWaiting();
  EXPECT_EQ(client.call->Wait(first).code, kOk);
  client.session->RetryWaiting();
  EXPECT_EQ(long_calls_.Pending(), 1u);
  long_calls_.RunAll();
  client.session->RetryWaiting();
  EXPECT_EQ(client.call->Wait(second).code, kOk);
  EXPECT_FALSE(client.session->has_waiting());
}

TEST_F(LocalPoolsTest, ASessionThatEndsMeanwhileLeavesNoLease) {
  auto client = std::make_unique<Client>(this, "a", 64 << 20, kScratch);
  Store(client->id, 3);
  Submit(*client);
  Submit(*client);
  client->session.reset();
  long_calls_.RunAll();
  EXPECT_EQ(node_.engine->GetStats().leases, 0u);
}

TEST_F(LocalPoolsTest, KeysOnTheirWayAreCharged) {
  MemoryAccount memory(MemoryAccount::Bounds{});
  memory_ = &memory;
  Client client(this, "a", 64 << 20, kScratch);
  const shm::Submission match = Submit(client);
  const shm::Completion done = client.call->Wait(match);
  EXPECT_EQ(done.code, Code(StatusCode::kResourceExhausted));
  EXPECT_THAT(client.call->Text(match, done), HasSubstr("limits.session_memory"));
  EXPECT_EQ(long_calls_.Pending(), 0u);
  EXPECT_FALSE(client.session->has_waiting());
}

}  // namespace
}  // namespace cairn::cache::testing
