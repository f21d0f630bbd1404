// Tests of etcd alone: it loses a member, a majority, a lease, its disk, its history; it refuses a
// user.

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>

#include "common/membership/etcd/etcd_discovery.h"
#include "common/status/matchers.h"
#include "tests/conformance/membership/observer.h"
#include "tests/conformance/membership/worlds.h"
#include "tests/support/etcd_cluster.h"

namespace cairn::membership {
namespace {

using cairn::testing::EtcdCluster;
using cairn::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kPrefix[] = "cairn/test/members/";

class EtcdTest : public ::testing::Test {
 protected:
  struct One {
    Observer observer;
    std::unique_ptr<Discovery> discovery;
  };
  void StartCluster(EtcdCluster::Options options = {}) {
    auto cluster = EtcdCluster::Start(std::move(options));
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
  }
  EtcdDiscovery::Options Options() const {
    return {.etcd = {.endpoints = cluster_->endpoints(), .timeout = std::chrono::seconds(1)},
            .prefix = kPrefix,
            .ttl = std::chrono::seconds(9)};
  }
  std::unique_ptr<One> Join(int number, const EtcdDiscovery::Options& options) {
    auto one = std::make_unique<One>();
    auto discovery = EtcdDiscovery::Create(options);
    CAIRN_CHECK(discovery.ok());
    one->discovery = *std::move(discovery);
    CAIRN_CHECK(one->discovery->Start(World::MemberOf(number), one->observer.callback()).ok());
    return one;
  }
  std::unique_ptr<One> Join(int number) { return Join(number, Options()); }
  static std::vector<std::string> Addresses(const std::vector<int>& numbers) {
    std::vector<std::string> addresses;
    for (const int number : numbers) addresses.push_back(World::AddressOf(number));
    return addresses;
  }

  // Their leases and graces last longer than any test, so what leaves has not run out of time.
  EtcdDiscovery::Options Patient() const {
    EtcdDiscovery::Options options = Options();
    options.etcd.timeout = std::chrono::seconds(5);
    options.etcd.last_timeout = std::chrono::seconds(60);
    options.ttl = std::chrono::minutes(10);
    return options;
  }
  bool HasRecords(const std::vector<int>& numbers) {
    const auto records = cluster_->Ctl({"get", "--prefix", "--keys-only", kPrefix});
    return records.ok() && std::ranges::all_of(numbers, [&](int number) {
             return records->find(World::MemberOf(number).id + "/") != std::string::npos;
           });
  }
  static void ExpectNoneShorter(const One& one, size_t first_view, size_t members) {
    const auto views = one.observer.views();
    for (size_t i = first_view; i < views.size(); ++i) EXPECT_GE(views[i].size(), members) << i;
  }

  // Asks for users from now on: "cairn" may read and write the members, "stranger" nothing. Both
  // have the password that the returned file has.
  std::string AskForUsers() {
    for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
             {"user", "add", "root:secret"},
             {"user", "add", "cairn:word"},
             {"user", "add", "stranger:word"},
             {"role", "add", "members"},
             {"role", "grant-permission", "members", "readwrite", kPrefix, "cairn/test/members0"},
             {"user", "grant-role", "cairn", "members"},
             {"role", "add", "root"},
             {"user", "grant-role", "root", "root"},
             {"auth", "enable"}}) {
      const auto done = cluster_->Ctl(command);
      EXPECT_TRUE(done.ok()) << command[0] << " " << command[1] << ": " << ToString(done.status());
    }
    const std::string password = directory_.path() + "/password";
    std::ofstream(password) << "word\n";
    return password;
  }

  const cairn::testing::TemporaryDirectory directory_;
  std::unique_ptr<EtcdCluster> cluster_;
};

TEST_F(EtcdTest, AKilledLeaderChangesNoView) {
  StartCluster();
  const auto a = Join(1), b = Join(2);
  ASSERT_TRUE(a->observer.WaitFor(Addresses({1, 2})));
  const auto leader = cluster_->Leader();
  ASSERT_OK(leader);
  cluster_->Kill(*leader);
  // News still arrive, through the members that live.
  const auto c = Join(3);
  EXPECT_TRUE(a->observer.WaitFor(Addresses({1, 2, 3})));
  EXPECT_TRUE(b->observer.WaitFor(Addresses({1, 2, 3})));
  // Its first view may have been of itself alone.
  const auto views = a->observer.views();
  for (size_t i = 1; i < views.size(); ++i) EXPECT_GE(views[i].size(), 2u) << i;
}

TEST_F(EtcdTest, AStoppedMemberHoldsNobodyUp) {
  StartCluster();
  auto options = Options();
  // All begin with the member that will stop.
  const auto a = Join(1, options), b = Join(2, options);
  ASSERT_TRUE(a->observer.WaitFor(Addresses({1, 2})));
  cluster_->member(0).Signal(SIGSTOP);
  const auto c = Join(3, options);
  EXPECT_TRUE(a->observer.WaitFor(Addresses({1, 2, 3})));
  EXPECT_TRUE(c->observer.WaitFor(Addresses({1, 2, 3})));
}

TEST_F(EtcdTest, AnEmptyDiskIsFilledAgainAndNoViewShrinks) {
  StartCluster();
  const auto a = Join(1), b = Join(2);
  ASSERT_TRUE(a->observer.WaitFor(Addresses({1, 2})));
  ASSERT_TRUE(b->observer.WaitFor(Addresses({1, 2})));
  const size_t before = a->observer.views().size();
  for (int i = 0; i < 3; ++i) cluster_->Kill(i);
  for (int i = 0; i < 3; ++i) ASSERT_OK(cluster_->Restart(i, /*wiped=*/true));
  ASSERT_OK(cluster_->WaitUntilReady());
  // Both records are there again.
  EXPECT_TRUE(Eventually([&] { return HasRecords({1, 2}); }));
  const auto c = Join(3);
  EXPECT_TRUE(a->observer.WaitFor(Addresses({1, 2, 3})));
  const auto views = a->observer.views();
  for (size_t i = before; i < views.size(); ++i) EXPECT_GE(views[i].size(), 2u);
}

TEST_F(EtcdTest, ARecordThatSomebodyDeletesComesBack) {
  StartCluster({.members = 1});
  const auto a = Join(1, Patient()), b = Join(2, Patient());
  ASSERT_TRUE(a->observer.WaitFor(Addresses({1, 2})));
  const size_t views = a->observer.views().size();
  ASSERT_OK(cluster_->Ctl({"del", "--prefix", std::string(kPrefix) + "node-2"}));
  EXPECT_TRUE(Eventually([&] { return HasRecords({2}); }));
  // It has seen all that when it sees the next one.
  const auto c = Join(3, Patient());
  EXPECT_TRUE(a->observer.WaitFor(Addresses({1, 2, 3})));
  ExpectNoneShorter(*a, views, 2);
}

// As when the renewals of all members met members of etcd that hang: to each of them the others
// would have gone, at the same moment, though all of them work.
TEST_F(EtcdTest, LostLeasesAreGrantedAgainAndNoViewShrinks) {
  StartCluster({.members = 1});
  const auto a = Join(1, Patient()), b = Join(2, Patient());
  ASSERT_TRUE(a->observer.WaitFor(Addresses({1, 2})));
  ASSERT_TRUE(b->observer.WaitFor(Addresses({1, 2})));
  const size_t views_of_a = a->observer.views().size(), views_of_b = b->observer.views().size();
  const auto leases = cluster_->Ctl({"lease", "list"});
  ASSERT_OK(leases);
  // "found 2 leases", then an id a line.
  size_t at = leases->find('\n') + 1;
  while (at < leases->size()) {
    const size_t end = leases->find('\n', at);
    ASSERT_OK(cluster_->Ctl({"lease", "revoke", leases->substr(at, end - at)}));
    at = end + 1;
  }
  EXPECT_TRUE(Eventually([&] { return HasRecords({1, 2}); }));
  const auto c = Join(3, Patient());
  EXPECT_TRUE(a->observer.WaitFor(Addresses({1, 2, 3})));
  EXPECT_TRUE(b->observer.WaitFor(Addresses({1, 2, 3})));
  ExpectNoneShorter(*a, views_of_a, 2);
  ExpectNoneShorter(*b, views_of_b, 2);
}

TEST_F(EtcdTest, AProcessThatStopsLeavesAtOnce) {
  StartCluster({.members = 1});
  const auto a = Join(1, Patient()), b = Join(2, Patient());
  ASSERT_TRUE(a->observer.WaitFor(Addresses({1, 2})));
  b->discovery->Stop();
  EXPECT_TRUE(a->observer.WaitFor(Addresses({1})));
}

TEST_F(EtcdTest, AProcessThatDiesLeavesWhenItsLeaseEnds) {
  StartCluster({.members = 1});
  auto options = Options();
  options.ttl = std::chrono::seconds(2);  // A long grace would be a long test.
  const auto a = Join(1, options);
  // As a process that was killed leaves it: a record, and a lease that nobody renews.
  const auto lease = cluster_->Ctl({"lease", "grant", "600"});
  ASSERT_OK(lease);
  const std::string id = lease->substr(6, lease->find(' ', 6) - 6);  // "lease ID granted ...".
  ASSERT_OK(
      cluster_->Ctl({"put", "--lease=" + id, std::string(kPrefix) + "node-9/9",
                     R"({"id":"node-9","address":"127.0.0.9:7072","epoch":1,"incarnation":"9"})"}));
  ASSERT_TRUE(a->observer.WaitFor(Addresses({1, 9})));
  // Its end, at a moment at which this process surely runs.
  ASSERT_OK(cluster_->Ctl({"lease", "revoke", id}));
  EXPECT_TRUE(a->observer.WaitFor(Addresses({1})));
}

TEST_F(EtcdTest, ARecordThatNobodyCanReadHidesNoOthers) {
  StartCluster({.members = 1});
  ASSERT_OK(cluster_->Ctl({"put", std::string(kPrefix) + "x/1", "no JSON"}));
  const auto a = Join(1), b = Join(2);
  EXPECT_TRUE(a->observer.WaitFor(Addresses({1, 2})));
  ASSERT_OK(cluster_->Ctl({"put", std::string(kPrefix) + "y/1", R"({"id":"y"})"}));
  const auto c = Join(3);
  EXPECT_TRUE(a->observer.WaitFor(Addresses({1, 2, 3})));
}

TEST_F(EtcdTest, ACompactedHistoryIsReadAnew) {
  StartCluster({.members = 1});
  const auto a = Join(1);
  ASSERT_TRUE(a->observer.WaitFor(Addresses({1})));
  // The watcher misses changes, and then their history.
  cluster_->Kill(0);
  ASSERT_OK(cluster_->Restart(0, /*wiped=*/false));
  ASSERT_OK(cluster_->WaitUntilReady());
  std::string revision;
  for (int i = 0; i < 5; ++i) ASSERT_OK(cluster_->Ctl({"put", "other", std::to_string(i)}));
  const auto got = cluster_->Ctl({"get", "other", "--write-out=fields"});
  ASSERT_OK(got);
  const size_t at = got->find("\"ModRevision\" : ") + 16;
  ASSERT_OK(cluster_->Ctl({"compact", got->substr(at, got->find('\n', at) - at)}));
  const auto b = Join(2);
  EXPECT_TRUE(a->observer.WaitFor(Addresses({1, 2})));
}

TEST_F(EtcdTest, UsersLogInAndOthersAreRefused) {
  StartCluster({.members = 1});
  const std::string password = AskForUsers();
  auto options = Options();
  // etcd takes a tenth of a second of processor time for each log-in, more where others want it.
  options.etcd.timeout = std::chrono::seconds(5);
  const auto without = Join(5, options);
  options.etcd.password_file = password;
  options.etcd.user = "stranger";
  const auto stranger = Join(6, options);
  options.etcd.user = "cairn";
  const auto a = Join(1, options), b = Join(2, options);
  EXPECT_TRUE(a->observer.WaitFor(Addresses({1, 2})));
  EXPECT_TRUE(Eventually(
      [&] { return stranger->discovery->health().last.code() == StatusCode::kPermissionDenied; }));
  EXPECT_TRUE(Eventually([&] { return !without->discovery->health().last.ok(); }));
  EXPECT_THAT(stranger->observer.views(), SizeIs(0));
}

TEST_F(EtcdTest, WithTlsAndUsersALostMemberOfEtcdChangesNoView) {
  const std::string certificate = directory_.path() + "/etcd.pem",
                    key = directory_.path() + "/etcd.key";
  auto openssl = cairn::testing::Process::Start(
      {.argv = {"/bin/sh", "-c",
                "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout " +
                    key + " -out " + certificate +
                    " -subj /CN=etcd -days 2 -addext subjectAltName=IP:127.0.0.1"}});
  ASSERT_OK(openssl);
  const auto made = (*openssl)->WaitExit(std::chrono::seconds(30));
  ASSERT_OK(made);
  ASSERT_EQ(made->code, 0) << (*openssl)->err();
  ASSERT_NO_FATAL_FAILURE(StartCluster({.certificate = certificate, .key = key}));
  auto options = Options();
  options.etcd.timeout = std::chrono::seconds(5);  // For log-ins, as above.
  options.ttl = std::chrono::seconds(15);          // Or a call that hangs could end a lease.
  options.etcd.password_file = AskForUsers();
  options.etcd.user = "cairn";
  const auto plain = Join(5, options);
  options.etcd.ca = certificate;
  const auto a = Join(1, options), b = Join(2, options);
  options.etcd.user = "stranger";
  const auto stranger = Join(6, options);
  options.etcd.user = "cairn";
  ASSERT_TRUE(a->observer.WaitFor(Addresses({1, 2})));
  EXPECT_TRUE(Eventually(
      [&] { return stranger->discovery->health().last.code() == StatusCode::kPermissionDenied; }));
  EXPECT_TRUE(Eventually([&] { return !plain->discovery->health().last.ok(); }));
  EXPECT_THAT(stranger->observer.views(), SizeIs(0));
  EXPECT_THAT(plain->observer.views(), SizeIs(0));
  // The members log in again at those that are left.
  const size_t before = a->observer.views().size();
  cluster_->Kill(0);
  const auto c = Join(3, options);
  EXPECT_TRUE(a->observer.WaitFor(Addresses({1, 2, 3})));
  EXPECT_TRUE(c->observer.WaitFor(Addresses({1, 2, 3})));
  const auto views = a->observer.views();
  for (size_t i = before; i < views.size(); ++i) EXPECT_GE(views[i].size(), 2u) << i;
}

TEST_F(EtcdTest, OfAnIdThatTwoProcessesHaveTheNewerIsSeen) {
  StartCluster({.members = 1});
  const auto a = Join(1);
  Member copy = World::MemberOf(1);
  copy.incarnation = 99;
  copy.address = World::AddressOf(7);
  auto discovery = EtcdDiscovery::Create(Options());
  ASSERT_OK(discovery);
  Observer observer;
  ASSERT_OK((*discovery)->Start(copy, observer.callback()));
  EXPECT_TRUE(a->observer.WaitFor(Addresses({7})));
  EXPECT_TRUE(observer.WaitFor(Addresses({7})));
  (*discovery)->Stop();
  EXPECT_TRUE(a->observer.WaitFor(Addresses({1})));
}

TEST_F(EtcdTest, MalformedSettingsAreRefusedByName) {
  const auto create = [](EtcdOptions etcd) {
    return EtcdDiscovery::Create({.etcd = std::move(etcd), .prefix = kPrefix}).status();
  };
  EXPECT_THAT(create({}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("endpoints")));
  EXPECT_THAT(create({.endpoints = {"http://a:1"}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("endpoints")));
  EXPECT_THAT(create({.endpoints = {"a:1"}, .ca = "x", .certificate = "y"}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("cluster.etcd.key")));
  EXPECT_THAT(create({.endpoints = {"a:1"}, .user = "u"}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("password_file")));
}

}  // namespace
}  // namespace cairn::membership
