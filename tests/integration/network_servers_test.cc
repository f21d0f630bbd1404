// Servers of others in machines of a network: they answer there, and a cut is what it would be.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>

#include "tests/support/etcd_cluster.h"
#include "tests/support/name_server.h"
#include "tests/support/network_lab.h"

namespace cairn::testing {
namespace {

// The answer to "cairn.test A" of the server at "ADDRESS:PORT". Empty: none came so soon.
std::string Ask(const std::string& server, std::chrono::seconds patience) {
  static constexpr char kQuestion[] =
      "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"  // Id, recursion, one question.
      "\x05"
      "cairn"
      "\x04"
      "test"
      "\x00"
      "\x00\x01\x00\x01";  // A, IN.
  const size_t colon = server.find(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(server.substr(colon + 1))));
  CAIRN_CHECK(inet_pton(AF_INET, server.substr(0, colon).c_str(), &address.sin_addr) == 1);
  const OwnedFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const timeval limit{patience.count(), 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (sendto(fd.get(), kQuestion, sizeof kQuestion - 1, 0,
             reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0) {
    return {};
  }
  char answer[512];
  const ssize_t n = recv(fd.get(), answer, sizeof answer, 0);
  return n < 0 ? std::string() : std::string(answer, static_cast<size_t>(n));
}

class NetworkServersLabTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status can = NetworkLab::Available(); !can.ok()) GTEST_SKIP() << can.message();
    auto made = NetworkLab::Create({.machines = 3});
    ASSERT_TRUE(made.ok()) << made.status();
    lab_ = *std::move(made);
  }
  std::unique_ptr<NetworkLab> lab_;
};

TEST_F(NetworkServersLabTest, EtcdElectsAnotherLeaderWhenItsLeaderIsCutOff) {
  EtcdCluster::Options options;
  for (size_t i = 0; i < 3; ++i) options.places.push_back(lab_->PlaceOf(i));
  auto etcd = EtcdCluster::Start(options);
  ASSERT_TRUE(etcd.ok()) << etcd.status();
  const auto first = (*etcd)->Leader();
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(lab_->Isolate(static_cast<size_t>(*first)).ok());
  // A write needs a majority, so this waits for the election.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  Result<std::string> written = (*etcd)->Ctl({"put", "key", "value"});
  while (!written.ok() && std::chrono::steady_clock::now() < deadline) {
    written = (*etcd)->Ctl({"put", "key", "value"});
  }
  ASSERT_TRUE(written.ok()) << written.status();
  const auto second = (*etcd)->Leader();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE(*second, *first);
  ASSERT_TRUE(lab_->RestoreAll().ok());
  ASSERT_TRUE((*etcd)->WaitUntilReady().ok());
}

TEST_F(NetworkServersLabTest, ANameServerAnswersInItsMachine) {
  auto made = NameServer::Create(lab_->PlaceOf(1));
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_TRUE((*made)->Serve({.name = "cairn.test", .addresses = {"10.1.2.3"}}).ok());
  const std::string answer = Ask((*made)->address(), std::chrono::seconds(60));
  ASSERT_GE(answer.size(), 4U);
  EXPECT_EQ(answer.substr(answer.size() - 4), std::string("\x0a\x01\x02\x03"));
  // Cut off, it answers nobody.
  ASSERT_TRUE(lab_->Cut(1, lab_->tester()).ok());
  EXPECT_EQ(Ask((*made)->address(), std::chrono::seconds(1)), "");
}

}  // namespace
}  // namespace cairn::testing
