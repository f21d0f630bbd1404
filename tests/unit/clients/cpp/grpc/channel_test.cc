#include "clients/cpp/src/grpc/channel.h"

#include "cairn/client/connect.h"
#include "common/status/matchers.h"

namespace cairn::client {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ConnectTest, RefusesBadAddresses) {
  for (const std::string address : {"", "host", "host:", ":80", "host:0", "host:65536", "host:8o",
                                    "a b:80", "::1:80", "unix:", "http://host:80", "host:80/x"}) {
    EXPECT_THAT(
        Connect({.address = address}).status(),
        StatusIs(StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("'address': got '" + address + "'"), HasSubstr("host:port"))))
        << address;
  }
}

TEST(ConnectTest, TakesGoodAddressesWithoutANode) {
  for (const std::string address : {"127.0.0.1:1", "localhost:65535", "[::1]:80",
                                    "cache-0.cache.svc:7070", "unix:/nowhere/socket"}) {
    EXPECT_OK(NewChannel({.address = address})) << address;
  }
}

TEST(ConnectTest, RefusesTlsFilesThatCannotBeUsed) {
  EXPECT_THAT(Connect({.address = "h:1", .tls = {.ca_file = "/nowhere/ca.pem"}}).status(),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'tls.ca_file'"), HasSubstr("/nowhere/ca.pem"),
                             HasSubstr("No such file"))));
  EXPECT_THAT(Connect({.address = "h:1", .tls = {.cert_file = "/nowhere/cert.pem"}}).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'tls.key_file'")));
  EXPECT_THAT(Connect({.address = "h:1", .tls = {.key_file = "/nowhere/key.pem"}}).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'tls.cert_file'")));
  EXPECT_THAT(Connect({.address = "h:1", .tls = {.ca_file = "docs/program/errors.md"}}).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("not a PEM file")));
}

TEST(ConnectTest, RefusesALongName) {
  EXPECT_THAT(Connect({.address = "h:1", .client_name = std::string(129, 'x')}).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'client_name'")));
}

}  // namespace
}  // namespace cairn::client
