// The clients that get in: TLS, mutual TLS and the admin role, with certificates made on the spot.

#include <gmock/gmock.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cairn/client/connect.h"
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
    const auto exit = (*process)->WaitExit(std::chrono::seconds(120));
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
  // A certificate of the authority "ca" that ends soon.
  static void IssueShort(const std::string& name, std::chrono::seconds life) {
    std::ofstream(directory->path() + "/ca.cnf")
        << "[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\nnew_certs_dir=.\nserial=serial\n"
           "default_md=sha256\npolicy=p\nunique_subject=no\n[p]\ncommonName=supplied\n";
    std::ofstream(directory->path() + "/index.txt");
    std::ofstream(directory->path() + "/serial") << "1000\n";
    Sh("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout " + name +
       ".key -out " + name + ".csr -subj /CN=" + name +
       " && openssl ca -batch -notext -config ca.cnf -cert ca.pem -keyfile ca.key -in " + name +
       ".csr -out " + name + ".pem -enddate $(date -u -d '+" + std::to_string(life.count()) +
       " seconds' +%y%m%d%H%M%SZ)");
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
  const auto scrape = metrics::HttpGet((*node)->admin(), "/metrics", std::chrono::seconds(60));
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

// gRPC's own words say what its code saw, and not what is wrong.
TEST_F(NodeTlsTest, AClientThatIsSetWronglyIsToldWhatIsWrong) {
  auto node = CacheNode::Start(MutualFlags(""));
  ASSERT_OK(node);
  const auto said = [&](const std::string& address, const client::TlsOptions& tls) {
    auto client = client::Connect({.address = address, .client_name = "test", .tls = tls});
    EXPECT_OK(client);
    const auto stats = (*client)->Stat({.deadline = std::chrono::seconds(120), .trace = ""});
    return stats.ok() ? "OK" : Message(stats.status());
  };
  const std::string wants = "the server wants TLS, or a certificate from its clients";
  EXPECT_THAT(said((*node)->address(), {}), HasSubstr(wants));
  EXPECT_THAT(said((*node)->address(), {.ca_file = Path("ca.pem")}), HasSubstr(wants));
  EXPECT_THAT(said((*node)->address(), {.ca_file = Path("evil.pem")}),
              HasSubstr("not from an authority that the client trusts"));
  EXPECT_THAT(said((*node)->address(), {.ca_file = Path("ca.pem"), .server_name = "other.example"}),
              HasSubstr("has another name than the address"));
  EXPECT_THAT(said((*node)->admin(), {}), HasSubstr("this is an HTTP port"));
  EXPECT_THAT(said((*node)->admin(), {.ca_file = Path("ca.pem")}),
              HasSubstr("the server has no TLS at this port"));
}

TEST_F(NodeTlsTest, OnlyNamedIdentitiesAreAdmins) {
  for (const char* identity :
       {"ops.example", "spiffe://example/ops", "cn:ops-cn", "x,ops.example"}) {
    auto node = CacheNode::Start(MutualFlags(identity));
    ASSERT_OK(node);
    NodeClient ops((*node)->address(), As("ops")), worker((*node)->address(), As("worker"));
    EXPECT_EQ(List(ops), grpc::StatusCode::OK) << identity;
    EXPECT_EQ(List(worker), grpc::StatusCode::PERMISSION_DENIED) << identity;
    // The data service is for both.
    EXPECT_EQ(worker.Open(NodeClient::Spec()).size(), 32u);
  }
  // A common name counts only if the setting says that it is one.
  for (const char* identity : {"ops-cn", "cn:ops.example"}) {
    auto node = CacheNode::Start(MutualFlags(identity));
    ASSERT_OK(node);
    NodeClient ops((*node)->address(), As("ops"));
    EXPECT_EQ(List(ops), grpc::StatusCode::PERMISSION_DENIED) << identity;
  }
  auto node = CacheNode::Start(MutualFlags(""));
  ASSERT_OK(node);
  NodeClient ops((*node)->address(), As("ops"));
  EXPECT_EQ(List(ops), grpc::StatusCode::PERMISSION_DENIED) << "an empty list means nobody";
  const auto scrape = metrics::HttpGet((*node)->admin(), "/metrics", std::chrono::seconds(60));
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
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  bool accepted = false;
  while (!accepted && std::chrono::steady_clock::now() < deadline) {
    accepted = NodeClient((*node)->address(), As("", "evil")).error().ok();
    if (!accepted) Pause();
  }
  EXPECT_TRUE(accepted);
}

// gRPC would use what it reads: no connection would work any more, and an empty file would end the
// node.
TEST_F(NodeTlsTest, FilesThatBecomeWrongLeaveTheCertificateOfBefore) {
  const auto put = [](const std::string& from, const std::string& to) {
    std::filesystem::copy_file(Path(from), Path("next"),
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::rename(Path("next"), Path(to));
  };
  put("server.pem", "kept.pem");
  put("server.key", "kept.key");
  auto flags = ServerFlags("kept");
  flags.insert(flags.end(), {"--tls.reload_interval", "1s"});
  auto node = CacheNode::Start(flags);
  ASSERT_OK(node);
  std::ofstream(Path("empty"));
  const std::pair<std::string, std::string> wrong[] = {
      {"server2.key", "kept.key' does not belong to"},
      {"empty", "kept.key' holds no unencrypted PEM key"}};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  for (const auto& [key, reason] : wrong) {
    put(key, "kept.key");
    while ((*node)->process().err().find(reason) == std::string::npos &&
           std::chrono::steady_clock::now() < deadline) {
      Pause();
    }
    EXPECT_THAT((*node)->process().err(), HasSubstr(reason));
    NodeClient client((*node)->address(), As(""));
    EXPECT_TRUE(client.error().ok()) << client.error().error_message();
    const auto scrape = metrics::HttpGet((*node)->admin(), "/metrics", std::chrono::seconds(60));
    ASSERT_OK(scrape);
    EXPECT_THAT(*scrape, HasSubstr("cairn_tls_files_refused{cert=\"server\"} 1\n"));
    EXPECT_THAT(*scrape, HasSubstr("cairn_tls_cert_expiry_timestamp_seconds{cert=\"server\"}"));
  }
  // The right pair is used at once, and these clients do not trust it.
  Issue("server_evil", "IP:127.0.0.1", "evil");
  put("server_evil.pem", "kept.pem");
  put("server_evil.key", "kept.key");
  bool accepted = true;
  while (accepted && std::chrono::steady_clock::now() < deadline) {
    accepted = NodeClient((*node)->address(), As("")).error().ok();
    if (accepted) Pause();
  }
  EXPECT_FALSE(accepted);
}

// Without certificates nobody on the network, and nobody who looks local, calls the Admin service.
TEST_F(NodeTlsTest, OnlyTheOperatorsSocketLeadsToTheAdminService) {
  TemporaryDirectory folder;
  const std::string path = folder.path() + "/admin.sock";
  const std::string unix_socket = "unix:" + folder.path() + "/data.sock";
  for (const bool tls : {false, true}) {
    auto flags = tls ? MutualFlags("") : std::vector<std::string>{};
    flags.insert(flags.end(), {"--admin.allow_loopback", "false", "--admin.socket", path,
                               "--listen_unix", unix_socket});
    auto node = CacheNode::Start(flags);
    ASSERT_OK(node);
    NodeClient loopback((*node)->address(), tls ? As("ops") : nullptr), data(unix_socket);
    EXPECT_EQ(List(loopback), grpc::StatusCode::PERMISSION_DENIED) << tls;
    EXPECT_EQ(List(data), grpc::StatusCode::PERMISSION_DENIED) << tls;
    NodeClient operators("unix:" + path);
    EXPECT_EQ(List(operators), grpc::StatusCode::OK) << tls;
    EXPECT_EQ(operators.Open(NodeClient::Spec()).size(), 32u) << "other calls work there, too";
    struct stat file {};
    ASSERT_EQ(stat(path.c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 0777, 0600u);
    operators.Close();
    (*node)->process().Signal(SIGTERM);
    ASSERT_OK((*node)->process().WaitExit(std::chrono::seconds(120)));
    EXPECT_NE(access(path.c_str(), F_OK), 0) << "the node left its file";
  }
}

TEST_F(NodeTlsTest, AnotherUserIsRefusedAtTheOperatorsSocket) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  TemporaryDirectory folder;
  const std::string path = folder.path() + "/admin.sock";
  auto node = CacheNode::Start({"--admin.socket", path});
  ASSERT_OK(node);
  // As if somebody had opened the file to all.
  ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  path.copy(to.sun_path, sizeof to.sun_path - 1);
  // The first bytes for a connection: gRPC greets, a refusal hangs up.
  const auto greeting_of = [&](uid_t uid) {
    const pid_t child = fork();
    if (child == 0) {
      char byte = 0;
      const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
      if (setuid(uid) != 0) _exit(3);
      if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) _exit(2);
      _exit(recv(fd, &byte, 1, 0) == 1 ? 1 : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  EXPECT_EQ(greeting_of(0), 1);
  EXPECT_EQ(greeting_of(65534), 0);
}

// The tools find the socket by the node's port.
TEST_F(NodeTlsTest, AnAdminClientFindsTheOperatorsSocket) {
  auto node = CacheNode::Start({"--admin.allow_loopback", "false"});
  ASSERT_OK(node);
  auto admin = client::ConnectAdmin({.address = (*node)->address()});
  ASSERT_OK(admin);
  EXPECT_OK((*admin)->ListNamespaces("", {.deadline = std::chrono::seconds(60)}));
}

// The client's certificate ends while it runs, and was replaced before. The node asks for a new
// connection every second.
TEST_F(NodeTlsTest, AClientFollowsItsCertificate) {
  auto flags = MutualFlags("");
  flags.insert(flags.end(), {"--rpc.max_connection_age", "1s"});
  auto node = CacheNode::Start(flags);
  ASSERT_OK(node);
  IssueShort("short", std::chrono::seconds(12));
  for (const char* end : {".pem", ".key"}) {
    std::filesystem::copy_file(Path(std::string("short") + end), Path(std::string("used") + end),
                               std::filesystem::copy_options::overwrite_existing);
  }
  client::ConnectOptions options{.address = (*node)->address()};
  options.tls = {.ca_file = Path("ca.pem"),
                 .cert_file = Path("used.pem"),
                 .key_file = Path("used.key"),
                 .reload_interval = std::chrono::seconds(1)};
  auto client = client::Connect(options);
  ASSERT_OK(client);
  // A call that meets the end of its connection fails. The next one has another connection.
  const auto stat = [&client] {
    const client::CallOptions call{.deadline = std::chrono::seconds(60)};
    auto got = (*client)->Stat(call);
    return got.status().code() == StatusCode::kUnavailable ? (*client)->Stat(call) : got;
  };
  ASSERT_OK(stat());
  Issue("renewed", "DNS:worker.example", "ca");
  std::filesystem::rename(Path("renewed.key"), Path("used.key"));
  std::filesystem::rename(Path("renewed.pem"), Path("used.pem"));
  // Until the old certificate is over, and the connections that were made with it.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (NodeClient((*node)->address(), As("short")).error().ok()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    EXPECT_OK(stat());
  }
  const auto connections_end = std::chrono::steady_clock::now() + std::chrono::seconds(4);
  while (std::chrono::steady_clock::now() < connections_end) {
    ASSERT_OK(stat());
    Pause();
  }
}

TEST_F(NodeTlsTest, AClientExpectsTheNameThatItIsTold) {
  Issue("named", "DNS:cache.example", "ca");
  auto node = CacheNode::Start(ServerFlags("named"));
  ASSERT_OK(node);
  for (const char* name : {"cache.example", "other.example", ""}) {
    client::ConnectOptions options{.address = (*node)->address()};
    options.tls = {.ca_file = Path("ca.pem"), .server_name = name};
    auto client = client::Connect(options);
    ASSERT_OK(client);
    EXPECT_EQ((*client)->Stat({.deadline = std::chrono::seconds(5)}).ok(),
              std::string_view(name) == "cache.example")
        << name;
  }
}

TEST_F(NodeTlsTest, BadFilesAreErrorsAtTheStart) {
  const auto run = [](std::vector<std::string> args) {
    args.insert(args.begin(), {Binary("cairn-cache"), "--check-config"});
    auto process = Process::Start({.argv = args});
    EXPECT_OK(process);
    const auto exit = (*process)->WaitExit(std::chrono::seconds(120));
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
