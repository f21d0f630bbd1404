#include "tools/cairn/process/ports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

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
