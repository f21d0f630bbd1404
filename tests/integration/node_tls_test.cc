// Who gets in: TLS, mutual TLS and the admin role, with certificates made on the spot.

#include <gmock/gmock.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/metrics/admin_server.h"
#include "common/status/matchers.h"
#include "tests/integration/node_client.h"
#include "tests/support/process.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class NodeTlsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory = new TemporaryDirectory();
    Sh("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out "
       "ca.pem -subj /CN=ca -days 2");
    Sh("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout evil.key -out "
       "evil.pem -subj /CN=ca -days 2");
    Issue("server", "IP:127.0.0.1", "ca");
    Issue("server2", "IP:127.0.0.1", "ca");
    Issue("worker", "DNS:worker.example", "ca");
    Issue("ops", "DNS:ops.example,URI:spiffe://example/ops", "ca");
    Issue("stranger", "DNS:ops.example", "evil");
    Issue("expired", "DNS:ops.example", "ca", -1);
    Issue("expired_server", "IP:127.0.0.1", "ca", -1);
  }
  static void TearDownTestSuite() { delete directory; }

  static void Sh(const std::string& command) {
    auto process =
        Process::Start({.argv = {"/bin/sh", "-c", command}, .directory = directory->path()});
    ASSERT_OK(process);
    const auto exit = (*process)->WaitExit(std::chrono::seconds(30));
    ASSERT_OK(exit);
    ASSERT_EQ(exit->code, 0) << command << (*process)->err();
  }
  static void Issue(const std::string& name, const std::string& san, const std::string& ca,
                    int days = 2) {
    std::ofstream(directory->path() + "/" + name + ".ext") << "subjectAltName=" << san << "\n";
    Sh("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout " + name +
       ".key -out " + name + ".csr -subj /CN=" + name + "-cn && openssl x509 -req -in " + name +
       ".csr -CA " + ca + ".pem -CAkey " + ca + ".key -CAcreateserial -out " + name +
       ".pem -days " + std::to_string(days) + " -extfile " + name + ".ext");
  }
  static std::string Path(const std::string& file) { return directory->path() + "/" + file; }

  // `name`: whose certificate the client shows; "": none.
  static std::shared_ptr<grpc::ChannelCredentials> As(const std::string& name,
                                                      const std::string& ca = "ca") {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = ReadFile(Path(ca + ".pem"));
    if (!name.empty()) {
      options.pem_cert_chain = ReadFile(Path(name + ".pem"));
      options.pem_private_key = ReadFile(Path(name + ".key"));
    }
    return grpc::SslCredentials(options);
  }
  static std::vector<std::string> ServerFlags(const std::string& name = "server") {
    return {"--listen",          "127.0.0.1:0", "--tls.cert",
            Path(name + ".pem"), "--tls.key",   Path(name + ".key")};
  }
  static std::vector<std::string> MutualFlags(const std::string& admins) {
    std::vector<std::string> flags = ServerFlags();
    flags.insert(flags.end(), {"--tls.client_ca", Path("ca.pem")});
    if (!admins.empty()) flags.insert(flags.end(), {"--tls.admin_identities", admins});
    return flags;
  }
  static grpc::StatusCode List(NodeClient& client) {
    grpc::ClientContext context;
    v1::ListNamespacesResponse response;
    return client.admin()
        .ListNamespaces(&context, v1::ListNamespacesRequest(), &response)
        .error_code();
  }

  static TemporaryDirectory* directory;
};
TemporaryDirectory* NodeTlsTest::directory = nullptr;

TEST_F(NodeTlsTest, ServerTlsLetsInWhoTrustsItsAuthority) {
  auto node = CacheNode::Start(ServerFlags());
  ASSERT_OK(node);
  NodeClient good((*node)->address(), As(""));
  EXPECT_TRUE(good.error().ok()) << good.error().error_message();
  EXPECT_EQ(List(good), grpc::StatusCode::OK) << "loopback";
  NodeClient distrusting((*node)->address(), As("", "evil"));
  EXPECT_FALSE(distrusting.error().ok());
  NodeClient plain((*node)->address());
  EXPECT_FALSE(plain.error().ok());
  const auto scrape = metrics::HttpGet((*node)->admin(), "/metrics", std::chrono::seconds(10));
  ASSERT_OK(scrape);
  EXPECT_THAT(*scrape, HasSubstr("cairn_tls_cert_expiry_timestamp_seconds{cert=\"server\"}"));
}

TEST_F(NodeTlsTest, MutualTlsAsksEveryClientForAGoodCertificate) {
  auto node = CacheNode::Start(MutualFlags("ops.example"));
  ASSERT_OK(node);
  for (const char* name : {"worker", "ops"}) {
    NodeClient client((*node)->address(), As(name));
    EXPECT_TRUE(client.error().ok()) << name << client.error().error_message();
  }
  for (const char* name : {"", "stranger", "expired"}) {
    NodeClient client((*node)->address(), As(name));
    EXPECT_FALSE(client.error().ok()) << "'" << name << "' got in";
  }
  NodeClient plain((*node)->address());
  EXPECT_FALSE(plain.error().ok());
}

TEST_F(NodeTlsTest, OnlyNamedIdentitiesAreAdmins) {
  for (const char* identity : {"ops.example", "spiffe://example/ops", "ops-cn", "x,ops.example"}) {
    auto node = CacheNode::Start(MutualFlags(identity));
    ASSERT_OK(node);
    NodeClient ops((*node)->address(), As("ops")), worker((*node)->address(), As("worker"));
    EXPECT_EQ(List(ops), grpc::StatusCode::OK) << identity;
    EXPECT_EQ(List(worker), grpc::StatusCode::PERMISSION_DENIED) << identity;
    // The data service is for both.
    EXPECT_EQ(worker.Open(NodeClient::Spec()).size(), 32u);
  }
  auto node = CacheNode::Start(MutualFlags(""));
  ASSERT_OK(node);
  NodeClient ops((*node)->address(), As("ops"));
  EXPECT_EQ(List(ops), grpc::StatusCode::PERMISSION_DENIED) << "an empty list means nobody";
  const auto scrape = metrics::HttpGet((*node)->admin(), "/metrics", std::chrono::seconds(10));
  ASSERT_OK(scrape);
  EXPECT_THAT(*scrape, HasSubstr("cairn_rpc_rejected_total{reason=\"auth\"} 1\n"));
}

TEST_F(NodeTlsTest, AUnixSocketBesideMutualTlsIsNoWayToTheAdminService) {
  TemporaryDirectory socket;
  auto flags = MutualFlags("ops.example");
  flags.insert(flags.end(), {"--listen_unix", "unix:" + socket.path() + "/s"});
  auto node = CacheNode::Start(flags);
  ASSERT_OK(node);
  NodeClient local("unix:" + socket.path() + "/s");
  EXPECT_TRUE(local.error().ok());
  EXPECT_EQ(List(local), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(NodeTlsTest, ACertificateThatWasReplacedIsUsedWithoutARestart) {
  std::filesystem::copy_file(Path("server.pem"), Path("live.pem"),
                             std::filesystem::copy_options::overwrite_existing);
  std::filesystem::copy_file(Path("server.key"), Path("live.key"),
                             std::filesystem::copy_options::overwrite_existing);
  auto flags = ServerFlags("live");
  flags.insert(flags.end(), {"--tls.reload_interval", "1s"});
  auto node = CacheNode::Start(flags);
  ASSERT_OK(node);
  // From now on it shows a certificate of another authority, which these clients trust instead.
  Issue("server_new", "IP:127.0.0.1", "evil");
  std::filesystem::rename(Path("server_new.key"), Path("live.key"));
  std::filesystem::rename(Path("server_new.pem"), Path("live.pem"));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  bool accepted = false;
  while (!accepted && std::chrono::steady_clock::now() < deadline) {
    accepted = NodeClient((*node)->address(), As("", "evil")).error().ok();
    if (!accepted) Pause();
  }
  EXPECT_TRUE(accepted);
}

TEST_F(NodeTlsTest, BadFilesAreErrorsAtTheStart) {
  const auto run = [](std::vector<std::string> args) {
    args.insert(args.begin(), {Binary("cairn-cache"), "--check-config"});
    auto process = Process::Start({.argv = args});
    EXPECT_OK(process);
    const auto exit = (*process)->WaitExit(std::chrono::seconds(20));
    EXPECT_OK(exit);
    EXPECT_EQ(exit->code, 2);
    return (*process)->err();
  };
  EXPECT_THAT(run(ServerFlags("expired_server")), HasSubstr("has expired"));
  EXPECT_THAT(run({"--tls.cert", Path("server.pem"), "--tls.key", Path("worker.key")}),
              HasSubstr("does not belong to"));
  EXPECT_THAT(run({"--tls.cert", Path("server.key"), "--tls.key", Path("server.key")}),
              HasSubstr("no PEM certificate"));
  EXPECT_THAT(run({"--tls.cert", Path("server.pem")}), HasSubstr("tls.key: got nothing"));
  EXPECT_THAT(run({"--tls.client_ca", Path("ca.pem")}), HasSubstr("tls.cert: got nothing"));
}

}  // namespace
}  // namespace cairn::testing
