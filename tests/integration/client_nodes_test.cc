// The C++ client with three real nodes, which know nothing of each other: what it promises when its
// home is killed, stopped or drained, and when the home is back.

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <thread>

#include "cairn/client/connect.h"
#include "common/status/matchers.h"
#include "tests/support/process.h"
#include "tests/unit/clients/cpp/patient_calls.h"

namespace cairn::client {
namespace {

using cairn::testing::CacheNode;
using cairn::testing::StatusIs;
using client::testing::Chain;
using client::testing::CheckingSink;
using client::testing::kCall;
using client::testing::SmallSpec;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::_;
using ::testing::HasSubstr;

// Of calls while a home hangs: a quarter of it is left for the next node.
constexpr seconds kUnderLoad(12);

class ClientNodesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string addresses;
    for (int i = 0; i < 3; ++i) {
      auto node = CacheNode::Start({});
      ASSERT_OK(node);
      addresses += (i == 0 ? "" : ",") + (*node)->address();
      const std::string address = (*node)->address();
      nodes_.emplace(address, *std::move(node));
    }
    auto client = Connect({.address = addresses, .client_name = "client_nodes_test"});
    ASSERT_OK(client);
    client_ = std::move(*client);
    ASSERT_OK(client_->OpenNamespace(spec_, kCall));
  }
  std::string Home() const { return client_->GetStats().home; }
  CacheNode& HomeNode() { return *nodes_.at(Home()); }
  void Restart(const std::string& address) {
    nodes_.erase(address);
    auto node = CacheNode::Start({"--listen", address});
    ASSERT_OK(node);
    nodes_[address] = *std::move(node);
  }
  void Store(const Chain& chain) { client::testing::Store(*client_, spec_, chain); }
  Result<MatchOutcome> Match(Duration deadline = seconds(60)) {
    return client_->Match(fingerprint_, chain_.keys, {.deadline = deadline});
  }

  // What callers see while `harm` happens to the home: threads that match, fetch what they found,
  // push what they missed, and ask for the rest.
  struct Seen {
    std::atomic<int> rounds{0}, failed_calls{0}, wrong_slices{0}, hits{0};
  };
  void LoadDuring(const std::function<void()>& harm, Seen* seen) {
    std::atomic<bool> end{false};
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; ++i) {
      callers.emplace_back([this, &end, seen] {
        while (!end) Round(seen);
      });
    }
    const auto rounds = [seen](int more) {
      const int until = seen->rounds + more;
      while (seen->rounds < until) std::this_thread::yield();
    };
    rounds(50);
    harm();
    rounds(200);
    end = true;
    for (std::thread& caller : callers) caller.join();
  }
  void Round(Seen* seen) {
    const auto note = [seen](const Status& status) {
      if (!status.ok()) {
        ++seen->failed_calls;
        ADD_FAILURE() << ToString(status);
      }
    };
    const CallOptions call = {.deadline = kUnderLoad};
    auto match = client_->Match(fingerprint_, chain_.keys, {.deadline = kUnderLoad});
    note(match.status());
    note(client_->Exists(fingerprint_, chain_.keys, call).status());
    note(client_->Prefetch(fingerprint_, chain_.keys, seconds(5), call).status());
    CheckingSink got(spec_, chain_.keys);
    note(client_->Get(fingerprint_, chain_.keys, {}, got, {.deadline = kUnderLoad}, {}).status());
    seen->wrong_slices += static_cast<int>(got.wrong);
    if (match.ok() && match->matched_blocks > 0) {
      CheckingSink sink(spec_, chain_.keys);
      // A lease may die with its node: a miss.
      const Status fetched =
          client_->Fetch(match->lease, {}, sink, {.progress = milliseconds(500)});
      if (fetched.ok() && sink.failed.empty()) ++seen->hits;
      seen->wrong_slices += static_cast<int>(sink.wrong);
    } else {
      // Lost with the node that dies meanwhile: a later miss.
      (void)client_->Push(fingerprint_, chain_.parts, {.deadline = milliseconds(500)});
    }
    ++seen->rounds;
  }

  const NamespaceSpec spec_ = SmallSpec();
  const Digest fingerprint_ = Fingerprint(spec_);
  const Chain chain_{spec_, 8};
  std::map<std::string, std::unique_ptr<CacheNode>> nodes_;
  std::unique_ptr<CacheClient> client_;
};

TEST_F(ClientNodesTest, KilledUnderLoad) {
  Store(chain_);
  const std::string first = Home();
  Seen seen;
  LoadDuring([&] { HomeNode().process().Kill(); }, &seen);
  EXPECT_EQ(seen.failed_calls, 0);
  EXPECT_EQ(seen.wrong_slices, 0);
  EXPECT_GT(seen.hits, 50) << "what was missed was stored again";
  EXPECT_NE(Home(), first);
  EXPECT_GE(client_->GetStats().home_changes, 1u);
}

TEST_F(ClientNodesTest, StoppedUnderLoad) {
  Store(chain_);
  const std::string first = Home();
  Seen seen;
  LoadDuring([&] { HomeNode().process().Signal(SIGSTOP); }, &seen);
  EXPECT_EQ(seen.failed_calls, 0);
  EXPECT_EQ(seen.wrong_slices, 0);
  EXPECT_GT(seen.hits, 50);
  EXPECT_NE(Home(), first);
  nodes_.at(first)->process().Signal(SIGCONT);
}

TEST_F(ClientNodesTest, DrainedUnderLoad) {
  Store(chain_);
  const std::string first = Home();
  Seen seen;
  LoadDuring([&] { HomeNode().process().Signal(SIGTERM); }, &seen);
  EXPECT_EQ(seen.failed_calls, 0);
  EXPECT_EQ(seen.wrong_slices, 0);
  EXPECT_GT(seen.hits, 50);
  EXPECT_NE(Home(), first);
  const auto exit = nodes_.at(first)->process().WaitExit(seconds(120));
  ASSERT_OK(exit);
  EXPECT_TRUE(exit->exited);
}

TEST_F(ClientNodesTest, BackWhenItsFirstHomeIsSteady) {
  const std::string first = Home();
  HomeNode().process().Kill();
  const auto killed = steady_clock::now();
  while (Home() == first && steady_clock::now() - killed < seconds(60)) ASSERT_OK(Match());
  ASSERT_NE(Home(), first);
  Store(chain_);
  auto watch = client_->WatchEvents({});
  ASSERT_OK(watch);
  Restart(first);
  const auto restarted = steady_clock::now();
  auto match = Match();
  ASSERT_OK(match);
  EXPECT_EQ(match->matched_blocks, 8u);
  Result<std::optional<CacheEvent>> event = std::optional<CacheEvent>();
  while (event.ok() && steady_clock::now() - restarted < seconds(300)) {
    event = (*watch)->Next(milliseconds(50));
    match = Match();
    ASSERT_OK(match);
    if (match->matched_blocks > 0) {
      CheckingSink sink(spec_, chain_.keys);
      ASSERT_OK(client_->Fetch(match->lease, {}, sink, {.progress = seconds(60)}))
          << "not even while it moves";
      ASSERT_EQ(sink.wrong, 0u);
      ASSERT_EQ(sink.slices, 32u);
    }
  }
  EXPECT_THAT(event, StatusIs(StatusCode::kUnavailable, HasSubstr("another node")));
  EXPECT_EQ(Home(), first);
  EXPECT_GE(steady_clock::now() - restarted, seconds(30));
  EXPECT_EQ(client_->GetStats().home_changes, 2u);
}

TEST_F(ClientNodesTest, ANodeTellsItsHostAndClientsThereFindIt) {
  // Unix sockets and loopback addresses are near anyway, so another address of this machine.
  char name[256] = {};
  ASSERT_EQ(gethostname(name, sizeof name - 1), 0);
  std::string addresses;
  std::vector<std::unique_ptr<CacheNode>> nodes;
  for (const std::string host : {"one", "two"}) {
    auto node = CacheNode::Start({"--cluster.host", host, "--listen", fmt::format("{}:0", name),
                                  "--i-accept-plaintext-on-the-network"});
    if (!node.ok()) GTEST_SKIP() << "no address but loopback: " << ToString(node.status());
    addresses += (nodes.empty() ? "" : ",") + (*node)->address();
    nodes.push_back(*std::move(node));
  }
  for (const std::string host : {"one", "two"}) {
    auto client = Connect({.address = addresses, .host = host});
    ASSERT_OK(client);
    ASSERT_OK((*client)->OpenNamespace(spec_, kCall));
    const std::string expected = nodes[host == "one" ? 0 : 1]->address();
    const auto begin = steady_clock::now();
    while ((*client)->GetStats().home != expected && steady_clock::now() - begin < seconds(60)) {
      ASSERT_OK((*client)->Match(fingerprint_, chain_.keys, {.deadline = seconds(60)}));
    }
    EXPECT_EQ((*client)->GetStats().home, expected);
  }
}

TEST_F(ClientNodesTest, ANodeThatWasNeverThereIsLeftInTheFirstCall) {
  const std::string there = nodes_.begin()->first;
  for (int i = 0; i < 20; ++i) {
    auto client = Connect({.address = "127.0.0.1:1," + there, .home_key = std::to_string(i)});
    ASSERT_OK(client);
    ASSERT_OK((*client)->Stat(kCall));
    EXPECT_EQ((*client)->GetStats().home, there) << "this one has answered";
  }
}

TEST_F(ClientNodesTest, ANameStandsForItsAddresses) {
  const std::string address = nodes_.begin()->first;
  const std::string port = address.substr(address.rfind(':') + 1);
  auto client = Connect({.address = "dns:localhost:" + port});
  ASSERT_OK(client);
  ASSERT_OK((*client)->OpenNamespace(spec_, kCall));
  EXPECT_THAT((*client)->GetStats().home, HasSubstr(":" + port));
  auto nowhere = Connect({.address = "dns:nowhere.invalid:" + port});
  ASSERT_OK(nowhere) << "it may come";
  EXPECT_THAT((*nowhere)->Match(fingerprint_, chain_.keys, {.deadline = seconds(60)}),
              StatusIs(StatusCode::kUnavailable, HasSubstr("nowhere.invalid")));
}

TEST_F(ClientNodesTest, BadAddressesAreNamed) {
  for (const std::string bad : {"a:1,b", "dns:b", "a:1,,b:2"}) {
    EXPECT_THAT(Connect({.address = bad}),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("'" + bad + "'")));
  }
  EXPECT_THAT(Connect({.address = "a:1,b:1", .host = std::string(129, 'h')}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'host'")));
  EXPECT_THAT(Connect({.address = "a:1,b:1", .tls = {.ca_file = "/nowhere.pem"}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("/nowhere.pem")));
}

}  // namespace
}  // namespace cairn::client
