// The process: settings, ports, probes, metrics, its end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "common/metrics/admin_server.h"
#include "common/status/matchers.h"
#include "tests/integration/node_client.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/support/fake_nccl/fake_library.h"
#include "tests/support/process.h"

namespace cairn::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Duration kTimeout = std::chrono::seconds(60);

struct Outcome {
  ExitStatus exit;
  std::string out, err;
};

Outcome RunOnce(std::vector<std::string> args, const std::string& program = Binary("cairn-cache")) {
  args.insert(args.begin(), program);
  auto process = Process::Start({.argv = args});
  EXPECT_OK(process);
  const auto exit = (*process)->WaitExit(std::chrono::seconds(120));
  EXPECT_OK(exit);
  return {exit.ok() ? *exit : ExitStatus(), (*process)->out(), (*process)->err()};
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Whether a process listens at a Unix socket.
bool Accepts(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool accepted =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return accepted;
}

TEST(NodeSettings, MistakesAreNamedAndNothingStarts) {
  TemporaryDirectory directory;
  const std::string file = directory.path() + "/node.yaml";
  std::ofstream(file) << "host:\n  capcity: 1GiB\n";
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {{"--config", file}, {"node.yaml line 2", "'host.capcity'", "did you mean 'host.capacity'?"}},
      {{"--host.capacity", "much"}, {"host.capacity: got 'much'", "expected a size from 1MiB"}},
      {{"--host.capacity", "8TiB"}, {"memory:", "host.capacity 8TiB", "lower host.capacity"}},
      {{"--memory.limit", "1GiB"},
       {"memory.limit:", "1GiB", "watch.memory 32MiB", "host.capacity"}},
      {{"--listen", "0.0.0.0:0"}, {"0.0.0.0:0", "--i-accept-plaintext-on-the-network"}},
      {{"--listen", "7400"}, {"listen: got '7400'", "expected host:port"}},
      {{"--events.zmq", "tcp://*:5557"}, {"'tcp://*:5557'", "events.trusted_network"}},
      {{"--tls.cert", "/nowhere.pem", "--tls.key", "/nowhere.pem"}, {"tls.cert", "/nowhere.pem"}},
      {{"--lisen", "x"}, {"did you mean '--listen'?"}},
      {{"helth"}, {"unknown command 'helth'"}},
      {{"--check-config", "--host.prefault", "maybe"}, {"unknown command 'maybe'"}},
  };
  for (const auto& [args, expected] : cases) {
    const Outcome outcome = RunOnce(args);
    EXPECT_TRUE(outcome.exit.exited);
    EXPECT_EQ(outcome.exit.code, 2) << args[0];
    for (const std::string& text : expected) EXPECT_THAT(outcome.err, HasSubstr(text));
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(NodeSettings, PlaintextOnTheNetworkInPlainWordsIsAccepted) {
  EXPECT_OK(CacheNode::Start({"--listen", "0.0.0.0:0", "--i-accept-plaintext-on-the-network"}));
  EXPECT_EQ(
      RunOnce({"--check-config", "--listen", "0.0.0.0:0", "--tls.allow_plaintext_beyond_loopback"})
          .exit.code,
      0);
}

TEST(NodeSettings, PrintedSettingsAreAConfigurationFile) {
  TemporaryDirectory directory;
  const Outcome printed =
      RunOnce({"--print-config", "--host.capacity", "77MiB", "--log.format", "json"});
  EXPECT_EQ(printed.exit.code, 0);
  const std::string file = directory.path() + "/node.yaml";
  std::ofstream(file) << printed.out;
  EXPECT_EQ(RunOnce({"--config", file, "--print-config"}).out, printed.out);
  EXPECT_THAT(printed.out, HasSubstr("capacity: 77MiB"));
}

TEST(NodeSettings, TheDocumentIsTheTableOfTheBinary) {
  EXPECT_THAT(ReadFile("docs/operate/config.md"), HasSubstr(RunOnce({"--print-config-docs"}).out))
      << "print it again with: cairn-cache --print-config-docs";
}

TEST(NodeSettings, HelpAndVersion) {
  EXPECT_THAT(RunOnce({"--help"}).out,
              AllOf(HasSubstr("Example: cairn-cache"), HasSubstr("--disk.flush_after (1s)")));
  EXPECT_THAT(RunOnce({"--version"}).out, HasSubstr("cairn-cache 0."));
}

TEST(NodeSettings, TheReadyLineCanBeJson) {
  auto process =
      Process::Start({.argv = {Binary("cairn-cache"), "--listen", "127.0.0.1:0", "--admin.listen",
                               "127.0.0.1:0", "--host.capacity", "16MiB", "--json"}});
  ASSERT_OK(process);
  const auto line = (*process)->WaitForLine("{\"ready\": true, \"grpc\": \"127.0.0.1:",
                                            std::chrono::seconds(120));
  ASSERT_OK(line);
  EXPECT_THAT(*line, HasSubstr("\"admin\": \"127.0.0.1:"));
}

TEST(NodeProbes, AnswerOverHttpAndThroughTheHealthCommand) {
  auto node = CacheNode::Start({});
  ASSERT_OK(node);
  const std::string admin = (*node)->admin();
  EXPECT_OK(metrics::HttpGet(admin, "/livez", kTimeout));
  EXPECT_OK(metrics::HttpGet(admin, "/startupz", kTimeout));
  EXPECT_OK(metrics::HttpGet(admin, "/readyz", kTimeout));
  EXPECT_EQ(RunOnce({"health", "--admin.listen", admin}).exit.code, 0);
  (*node)->process().Kill();
  const Outcome dead = RunOnce({"health", "--admin.listen", admin});
  EXPECT_EQ(dead.exit.code, 1);
  EXPECT_THAT(dead.err, HasSubstr(admin));
}

TEST(NodePorts, ATakenPortIsAnError) {
  auto node = CacheNode::Start({});
  ASSERT_OK(node);
  const Outcome same = RunOnce({"--listen", (*node)->address(), "--admin.listen", "127.0.0.1:0",
                                "--host.capacity", "16MiB"});
  EXPECT_EQ(same.exit.code, 1);
  EXPECT_THAT(same.err, HasSubstr("listen: cannot bind '" + (*node)->address() + "'"));
  const Outcome admin = RunOnce(
      {"--listen", "127.0.0.1:0", "--admin.listen", (*node)->admin(), "--host.capacity", "16MiB"});
  EXPECT_EQ(admin.exit.code, 1);
  EXPECT_THAT(admin.err, HasSubstr("admin.listen: cannot bind"));
}

TEST(NodePorts, AUnixSocketServesBesideThePort) {
  TemporaryDirectory directory;
  const std::string socket = "unix:" + directory.path() + "/node.sock";
  auto node = CacheNode::Start({"--listen_unix", socket});
  ASSERT_OK(node);
  NodeClient local(socket), remote((*node)->address());
  EXPECT_EQ(local.hello().node_id(), remote.hello().node_id());
  grpc::ClientContext context;
  v1::ListNamespacesResponse response;
  EXPECT_TRUE(local.admin().ListNamespaces(&context, v1::ListNamespacesRequest(), &response).ok());
}

// An engine that is there first connects at the first moment. Its session must not begin before the
// node has a same-node socket to offer: it would go over gRPC as long as the session lasts.
TEST(NodePorts, ASessionThatBeginsWithTheNodeIsOfferedTheSameNodeSocket) {
  for (int start = 0; start < 10; ++start) {
    TemporaryDirectory directory;
    const std::string socket = directory.path() + "/node.sock";
    std::string offered;
    std::atomic<bool> over = false;
    std::thread engine([&] {
      while (!over && !Accepts(socket)) std::this_thread::yield();
      if (!over) offered = NodeClient("unix:" + socket).hello().local_socket();
    });
    auto node = CacheNode::Start({"--listen_unix", "unix:" + socket});
    over = !node.ok();
    engine.join();
    ASSERT_OK(node);
    EXPECT_NE(offered, "");
  }
}

TEST(NodeMemory, AnEmptyNodeTakesLittleBeyondItsArena) {
  TemporaryDirectory directory;
  auto node = CacheNode::Start({"--disk.path", directory.path(), "--host.capacity", "256MiB"});
  ASSERT_OK(node);
  NodeClient client((*node)->address());
  client.Stat();
  EXPECT_LT((*node)->process().ResidentBytes(), (256u + 100u) << 20);
}

TEST(NodeEnd, SigtermWithoutClientsWaitsForNobody) {
  auto node = CacheNode::Start({"--drain.grace", "1h"});
  ASSERT_OK(node);
  (*node)->process().Signal(SIGTERM);
  const auto exit = (*node)->process().WaitExit(std::chrono::seconds(120));
  ASSERT_OK(exit);
  EXPECT_EQ(exit->code, 0);
}

TEST(NodeTrace, AFailedCallIsLoggedWithItsTrace) {
  auto node = CacheNode::Start({"--log.format", "json"});
  ASSERT_OK(node);
  NodeClient client((*node)->address());
  grpc::ClientContext context;
  context.AddMetadata("x-cairn-trace", "trace-77");
  v1::MatchResponse response;
  EXPECT_FALSE(client.cache().Match(&context, v1::MatchRequest(), &response).ok());
  (*node)->process().Signal(SIGTERM);
  ASSERT_OK((*node)->process().WaitExit(std::chrono::seconds(120)));
  EXPECT_THAT((*node)->process().err(),
              AllOf(HasSubstr("\"trace\":\"trace-77\""), HasSubstr("rpc_failed")));
}

// Names in a scrape: those of "# TYPE name kind".
std::set<std::string> ScrapedNames(const std::string& text) {
  std::set<std::string> names;
  const std::regex type("# TYPE (\\S+) ");
  for (std::sregex_iterator it(text.begin(), text.end(), type), end; it != end; ++it)
    names.insert((*it)[1]);
  return names;
}

// Names in the document: the first cell of each row, `name`.
std::set<std::string> DocumentedNames(const std::string& text) {
  std::set<std::string> names;
  const std::regex row("\n\\| `([a-z_]+)`");
  for (std::sregex_iterator it(text.begin(), text.end(), row), end; it != end; ++it)
    names.insert((*it)[1]);
  return names;
}

TEST(NodeMetrics, TheDocumentListsWhatIsExportedAndNothingElse) {
  TemporaryDirectory directory, sockets;
  // Its cluster is one in which it finds nobody else.
  const std::string nobody = "127.0.0.1:1";
  auto node = CacheNode::Start({"--disk.path",
                                directory.path(),
                                "--cluster.discovery",
                                "static",
                                "--cluster.members",
                                nobody,
                                "--cluster.advertise",
                                nobody,
                                "--device.library",
                                device::fake::LibraryPath(),
                                "--device.capacity",
                                "4MiB",
                                "--device.chunk",
                                "1MiB",
                                "--link.enabled",
                                "--link.library",
                                link::fake::LibraryPath(),
                                "--link.buffer",
                                "1MiB",
                                "--events.zmq",
                                "ipc://" + sockets.path() + "/events"});
  ASSERT_OK(node);
  NodeClient client((*node)->address());
  const std::string fingerprint = client.Open(NodeClient::Spec());
  ASSERT_TRUE(client.Store(fingerprint, 0).ok());
  client.Fetch(client.Match(fingerprint, 2).lease_id());
  const auto scrape = metrics::HttpGet((*node)->admin(), "/metrics", kTimeout);
  ASSERT_OK(scrape);
  std::set<std::string> documented = DocumentedNames(ReadFile("docs/operate/metrics.md"));
  // Only with TLS, or with a policy: node_tls_test and node_policy_test see them.
  std::erase_if(documented, [](const std::string& name) {
    return name.starts_with("cairn_tls_") || name.starts_with("cairn_auth_") ||
           name == "cairn_tenant_room_bytes" || name == "cairn_tenant_limit_bytes";
  });
  EXPECT_EQ(ScrapedNames(*scrape), documented);
  EXPECT_THAT(*scrape,
              AllOf(HasSubstr("cairn_lookup_blocks_total{tier=\"host\"} 1\n"),
                    HasSubstr("cairn_lookup_blocks_total{tier=\"none\"} 1\n"),
                    HasSubstr("cairn_tokens_saved_total 16\n"), HasSubstr("cairn_leases 1\n"),
                    HasSubstr("cairn_node_state{state=\"ready\"} 1\n")));
  // Room for 2,500 series a pod.
  EXPECT_LT(std::count(scrape->begin(), scrape->end(), '\n'), 2500);
}

TEST(NodeMetrics, PromtoolFindsNothingToComplainAbout) {
  const char* promtool = "/usr/bin/promtool";
  if (!std::filesystem::exists(promtool)) GTEST_SKIP() << "promtool is not installed";
  auto node = CacheNode::Start({});
  ASSERT_OK(node);
  const auto scrape = metrics::HttpGet((*node)->admin(), "/metrics", kTimeout);
  ASSERT_OK(scrape);
  TemporaryDirectory directory;
  std::ofstream(directory.path() + "/metrics") << *scrape;
  const Outcome outcome =
      RunOnce({"-c", std::string(promtool) + " check metrics < " + directory.path() + "/metrics"},
              "/bin/sh");
  EXPECT_EQ(outcome.exit.code, 0) << outcome.out << outcome.err;
}

}  // namespace
}  // namespace cairn::testing
