#include "tools/cairn/process/ports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>

namespace cairn::cli {
namespace {

// A port of loopback, of which only a listener lets others know.
class Port {
 public:
  Port() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&at), size), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size), 0);
    address_ = fmt::format("127.0.0.1:{}", ntohs(at.sin_port));
  }
  ~Port() { close(fd_); }
  void Listen() { EXPECT_EQ(listen(fd_, 1), 0); }
  const std::string& address() const { return address_; }

 private:
  const int fd_;
  std::string address_;
};

// Each outgoing connection takes one of the kernel's.
TEST(PortsTest, FreeAddressesHavePortsThatTheKernelGivesNobody) {
  int low = 0, high = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> low >> high;
  if (low <= 10'000 && high >= 65'535) GTEST_SKIP() << "the kernel gives all ports of this machine";
  const auto addresses = FreeLoopbackAddresses(20);
  ASSERT_TRUE(addresses.ok());
  EXPECT_EQ(std::set<std::string>(addresses->begin(), addresses->end()).size(), 20u);
  for (const std::string& address : *addresses) {
    const int port = std::stoi(address.substr(address.rfind(':') + 1));
    EXPECT_TRUE(port < low || port > high) << address;
    EXPECT_TRUE(CheckFree(address).ok());
  }
}

TEST(PortsTest, APortIsTakenOnceSomebodyListens) {
  Port port;
  EXPECT_TRUE(CheckFree(port.address()).ok());
  EXPECT_FALSE(SomebodyListens(port.address()));
  port.Listen();
  EXPECT_EQ(Message(CheckFree(port.address())), port.address() + " is taken");
  EXPECT_TRUE(SomebodyListens(port.address()));
}

TEST(PortsTest, WhatIsNoAddressOfThisMachineIsLeftToTheServer) {
  EXPECT_TRUE(CheckFree("nonsense").ok());
  EXPECT_TRUE(CheckFree("192.0.2.1:80").ok());
  EXPECT_FALSE(SomebodyListens("nonsense"));
}

}  // namespace
}  // namespace cairn::cli
