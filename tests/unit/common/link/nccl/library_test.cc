#include "common/link/nccl/library.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdlib>
#include <cstring>

#include "common/status/matchers.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/support/fake_nccl/fake_library.h"

namespace cairn::link::nccl {
namespace {

using cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Load remembers each path: other spellings of it load the fake again.
std::string FakeAgain() {
  static int times = 0;
  std::string path = fake::LibraryPath();
  for (int i = 0; i <= times; ++i) path.insert(path.rfind('/'), "/.");
  ++times;
  return path;
}

TEST(NcclLibraryTest, LoadsWhatIsNewEnough) {
  fake::FakeNccl nccl("version=22902");
  const auto library = Library::Load({.path = FakeAgain()});
  ASSERT_OK(library);
  EXPECT_EQ((*library)->version(), 22902);
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "=lo") << "its sockets are not encrypted";
}

TEST(NcclLibraryTest, RefusesAnOldOne) {
  fake::FakeNccl nccl("version=22899");
  EXPECT_THAT(Library::Load({.path = FakeAgain()}),
              StatusIs(StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("2.28.99"), HasSubstr("at least 2.29.2"))));
}

TEST(NcclLibraryTest, NamesWhatIsMissing) {
  EXPECT_THAT(Library::Load({.path = "libnccl_that_is_not_there.so"}),
              StatusIs(StatusCode::kNotFound, HasSubstr("libnccl_that_is_not_there.so")));
  EXPECT_THAT(Library::Load({.path = device::fake::LibraryPath()}),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("ncclCommInitRankConfig")));
}

TEST(NcclLibraryTest, TheNetworkThatIsTrustedStaysAsItWas) {
  fake::FakeNccl nccl;
  setenv("NCCL_SOCKET_IFNAME", "eth7", 1);
  ASSERT_OK(Library::Load({.path = FakeAgain(), .trusted_network = true}));
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "eth7");
  unsetenv("NCCL_SOCKET_IFNAME");
}

// CAIRN_NCCL: a libnccl.so.2 as NVIDIA packages it.
TEST(NcclLibraryTest, TheRealOneFitsOurDeclarations) {
  const char* const path = std::getenv("CAIRN_NCCL");
  const auto library = Library::Load({.path = path == nullptr ? "" : path});
  if (!library.ok() && path == nullptr) GTEST_SKIP() << "no NCCL: " << library.status().message();
  ASSERT_OK(library);
  EXPECT_GE((*library)->version(), kOldestVersion);
  EXPECT_LT((*library)->version(), 1'000'000);
  const Functions& functions = (*library)->functions();
  UniqueIdBytes first{}, second{};
  ASSERT_EQ(functions.get_unique_id(&first), Answer::kSuccess);
  ASSERT_EQ(functions.get_unique_id(&second), Answer::kSuccess);
  // Behind 8 bytes of its own, an id has the address where its ranks meet.
  sockaddr_in address;
  std::memcpy(&address, first.internal + 8, sizeof(address));
  EXPECT_EQ(address.sin_family, AF_INET);
  EXPECT_EQ(ntohl(address.sin_addr.s_addr), INADDR_LOOPBACK) << "its sockets are not encrypted";
  EXPECT_NE(std::string(first.internal, sizeof(first)),
            std::string(second.internal, sizeof(second)));
  EXPECT_STREQ(functions.get_error_string(Answer::kSuccess), "no error");
  EXPECT_THAT(std::string(functions.get_error_string(Answer::kInvalidUsage)),
              HasSubstr("invalid usage"));
  // Without a group there is nothing to end.
  EXPECT_EQ(functions.group_start(), Answer::kSuccess);
  EXPECT_EQ(functions.group_end(), Answer::kSuccess);
  // A configuration with a wrong mark is refused at once; on a machine without a driver any is.
  Config config;
  config.magic = 1;
  CommHandle* communicator = nullptr;
  EXPECT_NE(functions.comm_init_rank_config(&communicator, 2, first, 0, &config), Answer::kSuccess);
}

}  // namespace
}  // namespace cairn::link::nccl
