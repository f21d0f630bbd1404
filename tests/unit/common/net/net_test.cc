#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/net/address.h"
#include "common/net/congestion.h"
#include "common/net/tls.h"
#include "common/status/matchers.h"

namespace cairn::net {
namespace {

using cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ListenAddressTest, TheSystemSaysWhyAnAddressCannotBeBound) {
  const int taken = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof at;
  ASSERT_EQ(bind(taken, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  ASSERT_EQ(getsockname(taken, reinterpret_cast<sockaddr*>(&at), &bytes), 0);
  const auto error = [](const std::string& address) {
    return BindError(*ParseListenAddress(address, "listen"));
  };
  EXPECT_EQ(error(fmt::format("127.0.0.1:{}", ntohs(at.sin_port))), "Address already in use");
  close(taken);
  EXPECT_EQ(error("192.0.2.1:0"), "Cannot assign requested address");
  EXPECT_EQ(error("unix:/no/such/folder/x"), "No such file or directory");
  EXPECT_EQ(error("127.0.0.1:0"), "");
}

TEST(ListenAddressTest, ReadsHostsPortsAndUnixPaths) {
  EXPECT_EQ(ParseListenAddress("127.0.0.1:7400", "listen")->port, 7400);
  EXPECT_EQ(ParseListenAddress("[::1]:0", "listen")->host, "::1");
  EXPECT_EQ(ParseListenAddress("[::1]:0", "listen")->WithPort(5), "[::1]:5");
  EXPECT_TRUE(ParseListenAddress("unix:/run/a.sock", "listen")->is_unix);
  const std::string long_path = "unix:/" + std::string(107, 'x');
  for (const std::string& bad :
       {std::string(), std::string("7400"), std::string(":7400"), std::string("a:"),
        std::string("a:65536"), std::string("a:-1"), std::string("::1:7400"),
        std::string("[::1:7400"), std::string("unix:"), std::string("unix:rel"), long_path,
        std::string("[host]:1"), std::string("[[::1]:1"), std::string("a b:1"),
        std::string("a\0b:1", 5), std::string("unix:/a\nb")}) {
    EXPECT_THAT(
        ParseListenAddress(bad, "listen"),
        StatusIs(StatusCode::kInvalidArgument, HasSubstr("listen: got '" + bad + "', expected")));
  }
}

TEST(ListenAddressTest, TwoSettingsDoNotShareAnAddress) {
  const auto check = [](const std::string& one, const std::string& other) {
    return CheckDistinct(
        {{"a", *ParseListenAddress(one, "a")}, {"b", *ParseListenAddress(other, "b")}});
  };
  EXPECT_TRUE(check("127.0.0.1:1", "127.0.0.1:2").ok());
  EXPECT_TRUE(check("127.0.0.1:0", "127.0.0.1:0").ok()) << "the system picks them";
  EXPECT_TRUE(check("127.0.0.1:1", "127.0.0.2:1").ok());
  EXPECT_TRUE(check("unix:/a", "unix:/b").ok());
  for (const auto& [one, other] :
       {std::pair("127.0.0.1:1", "127.0.0.1:1"), std::pair("localhost:1", "127.0.0.1:1"),
        std::pair("0.0.0.0:1", "10.0.0.1:1"), std::pair("[::1]:1", "[::]:1"),
        std::pair("unix:/a", "unix:/a")}) {
    const Status status = check(one, other);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << one;
    EXPECT_THAT(Message(status), HasSubstr("which a has already"));
  }
}

TEST(BindTest, PlaintextBeyondLoopbackNeedsPlainWords) {
  TlsOptions options;
  for (const char* local : {"127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:/a"}) {
    EXPECT_OK(CheckBind(*ParseListenAddress(local, "listen"), options, "listen")) << local;
  }
  for (const char* open : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1", "128.0.0.1:1"}) {
    EXPECT_THAT(CheckBind(*ParseListenAddress(open, "listen"), options, "listen"),
                StatusIs(StatusCode::kPermissionDenied,
                         AllOf(HasSubstr(open), HasSubstr("--i-accept-plaintext-on-the-network"))));
  }
  options.allow_plaintext_beyond_loopback = true;
  EXPECT_OK(CheckBind(*ParseListenAddress("0.0.0.0:1", "listen"), options, "listen"));
}

Caller Named(const std::vector<std::string>& names, const std::vector<std::string>& common = {}) {
  return {.names = names, .common_names = common, .is_operator = false, .local = true};
}

TEST(AdminTest, WithoutCertificatesOnlyOperatorsMayCallUnlessLoopbackIsAllowed) {
  Caller local, remote, operators;
  local.local = operators.is_operator = true;
  const AdminRule plain, open{.certificates = false, .allow_loopback = true, .identities = {}};
  EXPECT_OK(CheckAdmin(operators, plain));
  EXPECT_THAT(CheckAdmin(local, plain),
              StatusIs(StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("admin.socket"), HasSubstr("admin.allow_loopback"))));
  EXPECT_THAT(CheckAdmin(remote, plain),
              StatusIs(StatusCode::kPermissionDenied, HasSubstr("admin.socket")));
  EXPECT_OK(CheckAdmin(local, open));
  EXPECT_FALSE(CheckAdmin(remote, open).ok());
}

TEST(AdminTest, RoleFollowsTheConfiguredIdentity) {
  const auto rule = [](std::vector<std::string> identities) {
    // With certificates, loopback counts for nothing.
    return AdminRule{
        .certificates = true, .allow_loopback = true, .identities = std::move(identities)};
  };
  const Caller ops = Named({"spiffe://example/ops", "ops.example"}, {"ops-cn"});
  EXPECT_OK(CheckAdmin(ops, rule({"x", "ops.example"})));
  EXPECT_OK(CheckAdmin(ops, rule({"spiffe://example/ops"})));
  EXPECT_THAT(CheckAdmin(ops, rule({})),
              StatusIs(StatusCode::kPermissionDenied, HasSubstr("spiffe://example/ops")));
  EXPECT_THAT(CheckAdmin(Named({"worker.example"}), rule({"ops.example"})),
              StatusIs(StatusCode::kPermissionDenied, HasSubstr("worker")));
  EXPECT_THAT(CheckAdmin(Named({}), rule({"ops.example"})),
              StatusIs(StatusCode::kPermissionDenied, HasSubstr("no certificate")));
}

// Many authorities let whoever asks for a certificate choose its common name.
TEST(AdminTest, ACommonNameCountsOnlyWhenTheRuleSaysSo) {
  const auto rule = [](const std::string& identity) {
    return AdminRule{.certificates = true, .allow_loopback = false, .identities = {identity}};
  };
  const Caller chosen = Named({"worker.example"}, {"ops.example"});
  EXPECT_FALSE(CheckAdmin(chosen, rule("ops.example")).ok());
  EXPECT_OK(CheckAdmin(chosen, rule("cn:ops.example")));
  // Nor does an alternative name that looks like one.
  EXPECT_FALSE(CheckAdmin(Named({"cn:ops.example"}), rule("cn:ops.example")).ok());
  EXPECT_THAT(CheckAdmin(Named({}, {"somebody"}), rule("cn:ops.example")),
              StatusIs(StatusCode::kPermissionDenied, HasSubstr("'cn:somebody'")));
}

TEST(TlsOptionsTest, HalfAConfigurationIsAnError) {
  TlsOptions options;
  EXPECT_OK(Check(options));
  options.client_ca = "ca.pem";
  EXPECT_THAT(Check(options), StatusIs(StatusCode::kInvalidArgument, HasSubstr("tls.cert")));
  options.certificate = "/nowhere/cert.pem";
  EXPECT_THAT(Check(options), StatusIs(StatusCode::kInvalidArgument, HasSubstr("tls.key")));
  options.private_key = "/nowhere/key.pem";
  EXPECT_THAT(Check(options),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("/nowhere/cert.pem")));
}

TEST(CongestionTest, IsReadAndSetOnTheListeningSocketAndInherited) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(listener, any, size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, any, &size), 0);
  const int port = ntohs(address.sin_port);

  const auto live = ListenerCongestionControl(port, "", "cc");
  ASSERT_OK(live);
  EXPECT_FALSE(live->empty());
  EXPECT_THAT(ListenerCongestionControl(port, "no-such", "cc"),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("cc: got 'no-such'"), HasSubstr("reno"))));
  const auto reno = ListenerCongestionControl(port, "reno", "cc");  // Every kernel has it.
  ASSERT_OK(reno);
  EXPECT_EQ(*reno, "reno");

  const auto kept = ListenerCongestionControl(port, "auto", "cc");
  ASSERT_OK(kept);
  EXPECT_EQ(*kept, "reno") << "nothing is wrong with it";
  if (ListenerCongestionControl(port, "bbr", "cc").ok()) {
    const auto better = ListenerCongestionControl(port, "auto", "cc");
    ASSERT_OK(better);
    EXPECT_THAT(*better, ::testing::AnyOf("cubic", "reno"));
  }
  ASSERT_OK(ListenerCongestionControl(port, "reno", "cc"));

  const int client = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(connect(client, any, size), 0);
  const int accepted = accept(listener, nullptr, nullptr);
  char name[16] = {};
  socklen_t length = sizeof name;
  ASSERT_EQ(getsockopt(accepted, IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
  EXPECT_STREQ(name, "reno");
  for (const int fd : {client, accepted, listener}) close(fd);
  EXPECT_THAT(ListenerCongestionControl(port, "", "cc"),
              StatusIs(StatusCode::kNotFound, HasSubstr("port")));
}

}  // namespace
}  // namespace cairn::net
