#include "common/membership/dns_discovery.h"

#include <gmock/gmock.h>

#include <map>
#include <utility>

#include "common/status/matchers.h"

namespace cairn::membership {
namespace {

using cairn::testing::StatusIs;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Answer = Result<std::vector<Record>>;

// Answers as a test says; keeps questions whose answer it does not know.
class FakeResolver final : public Resolver {
 public:
  void Resolve(const std::string& name, RecordType type, Done done) override {
    ++questions;
    const auto it = answers.find({name, type});
    if (it != answers.end()) {
      done(it->second);
    } else {
      waiting.push_back(std::move(done));
    }
  }
  std::map<std::pair<std::string, RecordType>, Answer> answers;
  std::vector<Done> waiting;
  int questions = 0;
};

class DnsDiscoveryTest : public ::testing::Test {
 protected:
  void Make(std::vector<std::string> names) {
    discovery_ = std::make_unique<DnsDiscovery>(
        DnsDiscovery::Options{.names = std::move(names), .port = 7072, .interval = seconds(5)},
        &resolver_, &timers_, &clock_);
  }
  void Start() {
    ASSERT_OK(discovery_->Start({}, [this](const View& view) { views_.push_back(view); }));
  }
  void Next() {
    clock_.Advance(seconds(5));
    EXPECT_EQ(timers_.RunDue(), 1u);
  }
  void Addresses(std::vector<std::string> a, std::vector<std::string> aaaa = {}) {
    std::vector<Record> records;
    for (auto& host : a) records.push_back({.host = host});
    resolver_.answers.insert_or_assign({"s", RecordType::kA}, records);
    records.clear();
    for (auto& host : aaaa) records.push_back({.host = host});
    resolver_.answers.insert_or_assign({"s", RecordType::kAaaa}, records);
  }
  std::vector<std::string> Seen() const {
    std::vector<std::string> addresses;
    for (const Member& member : views_.back()) addresses.push_back(member.address);
    return addresses;
  }

  FakeClock clock_;
  Timers timers_{&clock_};
  FakeResolver resolver_;
  std::vector<View> views_;
  std::unique_ptr<DnsDiscovery> discovery_;
};

TEST_F(DnsDiscoveryTest, AddressesOfBothFamiliesAreMembers) {
  Make({"s"});
  Addresses({"10.0.0.2", "10.0.0.1"}, {"fd00::1"});
  Start();
  EXPECT_THAT(Seen(), ElementsAre("10.0.0.1:7072", "10.0.0.2:7072", "[fd00::1]:7072"));
  EXPECT_TRUE(discovery_->health().complete);
  Next();
  EXPECT_THAT(views_, SizeIs(1));  // Nothing changed.
}

TEST_F(DnsDiscoveryTest, ServicesBringTheirPorts) {
  Make({"_peer._tcp.s"});
  resolver_.answers.insert_or_assign({"_peer._tcp.s", RecordType::kSrv},
                                     std::vector<Record>{{.host = "pod-1.s", .port = 7}});
  Start();
  EXPECT_THAT(Seen(), ElementsAre("pod-1.s:7"));
}

TEST_F(DnsDiscoveryTest, AMemberLeavesAfterTwoWholeAnswersWithoutIt) {
  Make({"s"});
  Addresses({"10.0.0.1", "10.0.0.2"});
  Start();
  Addresses({"10.0.0.1"});
  Next();
  EXPECT_THAT(Seen(), SizeIs(2));
  Next();
  EXPECT_THAT(Seen(), ElementsAre("10.0.0.1:7072"));
}

TEST_F(DnsDiscoveryTest, OneThatComesBackBetweenStays) {
  Make({"s"});
  Addresses({"10.0.0.1", "10.0.0.2"});
  Start();
  for (int i = 0; i < 4; ++i) {
    Addresses({"10.0.0.1"});
    Next();
    Addresses({"10.0.0.1", "10.0.0.2"});
    Next();
  }
  EXPECT_THAT(views_, SizeIs(1));
}

TEST_F(DnsDiscoveryTest, ErrorsAndEmptyAnswersRemoveNobody) {
  Make({"s"});
  Addresses({"10.0.0.1", "10.0.0.2"});
  Start();
  const Answer bad[] = {Errorf(StatusCode::kDeadlineExceeded, "no name server answered"),
                        Errorf(StatusCode::kNotFound, "there is no such name"),
                        std::vector<Record>{}};
  for (const Answer& answer : bad) {
    resolver_.answers.insert_or_assign({"s", RecordType::kA}, answer);
    for (int i = 0; i < 5; ++i) Next();
    EXPECT_FALSE(discovery_->health().last.ok());
  }
  EXPECT_THAT(views_, SizeIs(1));
  EXPECT_THAT(discovery_->health().last, StatusIs(StatusCode::kNotFound, HasSubstr("no member")));
}

TEST_F(DnsDiscoveryTest, APartOfAnAnswerOnlyAdds) {
  Make({"s"});
  Addresses({"10.0.0.1"}, {"fd00::1"});
  Start();
  Addresses({"10.0.0.2"});
  resolver_.answers.insert_or_assign({"s", RecordType::kAaaa},
                                     Errorf(StatusCode::kUnavailable, "refused"));
  for (int i = 0; i < 5; ++i) Next();
  EXPECT_THAT(Seen(), ElementsAre("10.0.0.1:7072", "10.0.0.2:7072", "[fd00::1]:7072"));
}

TEST_F(DnsDiscoveryTest, AnAnswerAfterStopIsDropped) {
  Make({"s"});
  Start();
  ASSERT_THAT(resolver_.waiting, SizeIs(2));
  discovery_->Stop();
  discovery_.reset();
  for (auto& done : resolver_.waiting) done(std::vector<Record>{{.host = "10.0.0.1"}});
  EXPECT_THAT(views_, IsEmpty());
  EXPECT_EQ(timers_.pending(), 0u);
}

TEST_F(DnsDiscoveryTest, MalformedSettingsAreRefused) {
  const auto start = [this](DnsDiscovery::Options options) {
    DnsDiscovery discovery(std::move(options), &resolver_, &timers_, &clock_);
    return discovery.Start({}, [](const View&) {});
  };
  EXPECT_THAT(start({.port = 1}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("cluster.dns.names")));
  EXPECT_THAT(start({.names = {"a", ""}, .port = 1}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("cluster.dns.names")));
  EXPECT_THAT(start({.names = {"_a._tcp.b", "c"}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("cluster.dns.port")));
  EXPECT_EQ(resolver_.questions, 0);
}

}  // namespace
}  // namespace cairn::membership
