// The network of tests with real processes: what it delivers, loses and delays, and that it leaves
// nothing behind.
#include "tests/support/network_lab.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;
using SteadyTime = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint16_t kPort = 7000;
constexpr seconds kPatience(20);

// A socket of a machine that cannot hang a test.
OwnedFd MakeSocket(const NetworkLab& lab, size_t place, int type) {
  OwnedFd made;
  lab.Run(place, [&] { made = OwnedFd(socket(AF_INET, type | SOCK_CLOEXEC, 0)); });
  CAIRN_CHECK(made.get() >= 0);
  const timeval patience{kPatience.count(), 0};
  setsockopt(made.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(made.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  return made;
}

sockaddr_in SocketAddress(const NetworkLab& lab, size_t place) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  CAIRN_CHECK(inet_pton(AF_INET, lab.Address(place).c_str(), &address.sin_addr) == 1);
  return address;
}

// Sends and receives numbers as datagrams.
class Datagrams {
 public:
  Datagrams(const NetworkLab& lab, size_t place)
      : lab_(lab), socket_(MakeSocket(lab, place, SOCK_DGRAM)) {
    const sockaddr_in own = SocketAddress(lab, place);
    CAIRN_CHECK(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0);
  }
  void Send(size_t to, uint32_t number) {
    const sockaddr_in address = SocketAddress(lab_, to);
    // A full queue of a slow link is an error at once.
    (void)!sendto(socket_.get(), &number, sizeof number, 0,
                  reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  // nullopt: nothing came for long.
  std::optional<uint32_t> Receive() {
    uint32_t number = 0;
    if (recv(socket_.get(), &number, sizeof number, 0) != sizeof number) return std::nullopt;
    return number;
  }
  // All numbers that come before `last`.
  std::vector<uint32_t> ReceiveUntil(uint32_t last) {
    std::vector<uint32_t> numbers;
    for (std::optional<uint32_t> n = Receive(); n.has_value() && *n != last; n = Receive()) {
      numbers.push_back(*n);
    }
    return numbers;
  }

 private:
  const NetworkLab& lab_;
  const OwnedFd socket_;
};

// Lets both resolve each other's Ethernet address: until then their packets wait.
void Introduce(Datagrams& a, size_t place_of_a, Datagrams& b, size_t place_of_b) {
  a.Send(place_of_b, 0);
  ASSERT_EQ(b.Receive(), 0U);
  b.Send(place_of_a, 0);
  ASSERT_EQ(a.Receive(), 0U);
}

// The two ends of one TCP connection.
struct Connection {
  OwnedFd from, to;
};

Connection Connect(const NetworkLab& lab, size_t from, size_t to) {
  const OwnedFd listener = MakeSocket(lab, to, SOCK_STREAM);
  const sockaddr_in address = SocketAddress(lab, to);
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  const int reuse = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
  CAIRN_CHECK(bind(listener.get(), generic, sizeof address) == 0);
  CAIRN_CHECK(listen(listener.get(), 1) == 0);
  Connection made{MakeSocket(lab, from, SOCK_STREAM), {}};
  CAIRN_CHECK(connect(made.from.get(), generic, sizeof address) == 0);
  made.to = OwnedFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  CAIRN_CHECK(made.to.get() >= 0);
  return made;
}

// The rate that came through, in bits a second.
double MeasureRate(const NetworkLab& lab, size_t from, size_t to, size_t bytes) {
  const Connection connection = Connect(lab, from, to);
  std::thread sender([&] {
    const std::vector<char> data(64 << 10);
    for (size_t left = bytes; left > 0;) {
      const ssize_t n = send(connection.from.get(), data.data(), std::min(left, data.size()), 0);
      if (n <= 0) break;
      left -= static_cast<size_t>(n);
    }
    shutdown(connection.from.get(), SHUT_WR);
  });
  std::vector<char> buffer(256 << 10);
  const auto begin = SteadyTime::now();
  size_t received = 0;
  for (ssize_t n = 1; n > 0; received += static_cast<size_t>(std::max<ssize_t>(n, 0))) {
    n = recv(connection.to.get(), buffer.data(), buffer.size(), 0);
  }
  const std::chrono::duration<double> took = SteadyTime::now() - begin;
  sender.join();
  EXPECT_EQ(received, bytes);
  return static_cast<double>(received) * 8 / took.count();
}

bool IsDead(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  // Nobody waits for a child whose parent was killed, in some containers.
  return text.empty() || text[text.rfind(')') + 2] == 'Z';
}

bool HasInterface(const std::string& name) { return if_nametoindex(name.c_str()) != 0; }

bool SameNamespace(const NetworkNamespace& a, const NetworkNamespace& b) {
  struct stat of_a {
  }, of_b{};
  return fstat(a.fd(), &of_a) == 0 && fstat(b.fd(), &of_b) == 0 && of_a.st_ino == of_b.st_ino;
}

class NetworkLabTest : public ::testing::TestWithParam<NetworkLab::Wiring> {
 protected:
  void Make(NetworkLab::Options options) {
    options.wiring = GetParam();
    if (const Status can = NetworkLab::Available(options.wiring); !can.ok()) {
      GTEST_SKIP() << can.message();
    }
    auto made = NetworkLab::Create(options);
    ASSERT_TRUE(made.ok()) << made.status();
    lab_ = *std::move(made);
  }
  std::unique_ptr<NetworkLab> lab_;
};

std::string NameOf(const ::testing::TestParamInfo<NetworkLab::Wiring>& wiring) {
  return wiring.param == NetworkLab::Wiring::kBridge ? "Bridge" : "Switch";
}

INSTANTIATE_TEST_SUITE_P(Wirings, NetworkLabTest,
                         ::testing::Values(NetworkLab::Wiring::kBridge,
                                           NetworkLab::Wiring::kSwitch),
                         NameOf);

#define MAKE_LAB(...)                         \
  ASSERT_NO_FATAL_FAILURE(Make(__VA_ARGS__)); \
  if (IsSkipped()) return

TEST_P(NetworkLabTest, EveryPlaceReachesEveryOther) {
  MAKE_LAB({.machines = 16});
  std::vector<std::unique_ptr<Datagrams>> places;
  for (size_t place = 0; place <= lab_->tester(); ++place) {
    places.push_back(std::make_unique<Datagrams>(*lab_, place));
  }
  for (size_t from = 0; from < places.size(); ++from) {
    for (size_t to = 0; to < places.size(); ++to) {
      const uint32_t number = static_cast<uint32_t>(from * 100 + to);
      places[from]->Send(to, number);
      ASSERT_EQ(places[to]->Receive(), number) << from << " to " << to;
    }
  }
}

TEST_P(NetworkLabTest, AProcessSeesItsMachineOnly) {
  MAKE_LAB({.machines = 2});
  auto process = lab_->Start(1, {.argv = {FindProgram("ip"), "-oneline", "-4", "addr"}});
  ASSERT_TRUE(process.ok()) << process.status();
  ASSERT_TRUE((*process)->WaitExit(kPatience).ok());
  EXPECT_THAT((*process)->out(), HasSubstr(lab_->Address(1) + "/24"));
  EXPECT_THAT((*process)->out(), HasSubstr("127.0.0.1/8"));
  EXPECT_EQ(std::ranges::count((*process)->out(), '\n'), 2) << (*process)->out();
}

TEST_P(NetworkLabTest, AHelperStartsItsProcessInAMachine) {
  MAKE_LAB({.machines = 2});
  std::unique_ptr<Process> process;
  {
    const InNetwork inside(lab_->network(1));
    auto started = Process::Start({.argv = {FindProgram("ip"), "-oneline", "-4", "addr"}});
    ASSERT_TRUE(started.ok()) << started.status();
    process = *std::move(started);
  }
  ASSERT_TRUE(process->WaitExit(kPatience).ok());
  EXPECT_THAT(process->out(), HasSubstr(lab_->Address(1) + "/24"));
  // This thread is where it was.
  const NetworkNamespace now = *NetworkNamespace::Current();
  EXPECT_TRUE(SameNamespace(now, lab_->network(lab_->tester())));
  EXPECT_FALSE(SameNamespace(now, lab_->network(1)));
}

TEST_P(NetworkLabTest, ACutStopsOneDirectionUntilItIsRestored) {
  MAKE_LAB({.machines = 2});
  Datagrams a(*lab_, 0), b(*lab_, 1);
  ASSERT_NO_FATAL_FAILURE(Introduce(a, 0, b, 1));
  ASSERT_TRUE(lab_->Cut(0, 1).ok());
  for (uint32_t i = 0; i < 20; ++i) a.Send(1, i);
  for (uint32_t i = 0; i < 20; ++i) b.Send(0, i);
  for (uint32_t i = 0; i < 20; ++i) EXPECT_EQ(a.Receive(), i);
  // The switch forwards in turn, so it has forwarded what was sent first. Links keep the order, so
  // what the cut did not stop would come before this.
  ASSERT_TRUE(lab_->Restore(0, 1).ok());
  a.Send(1, 1000);
  EXPECT_EQ(b.Receive(), 1000U);
}

TEST_P(NetworkLabTest, AConnectionOutlivesACut) {
  MAKE_LAB({.machines = 2});
  const Connection connection = Connect(*lab_, 0, 1);
  ASSERT_TRUE(lab_->Isolate(1).ok());
  ASSERT_EQ(send(connection.from.get(), "x", 1, 0), 1);
  pollfd arrived{connection.to.get(), POLLIN, 0};
  // TCP sends again after 0.2 s, so this sees one lost repetition too.
  EXPECT_EQ(poll(&arrived, 1, 300), 0);
  ASSERT_TRUE(lab_->RestoreAll().ok());
  char byte = 0;
  EXPECT_EQ(recv(connection.to.get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 'x');
}

TEST_P(NetworkLabTest, LosesAsManyPacketsAsItWasTold) {
  MAKE_LAB({.machines = 2});
  Datagrams a(*lab_, 0), b(*lab_, 1);
  ASSERT_NO_FATAL_FAILURE(Introduce(a, 0, b, 1));
  constexpr uint32_t kRounds = 20, kEach = 100, kLast = 1000;
  size_t received = 0;
  // Rounds that a socket's buffer holds.
  for (uint32_t round = 0; round < kRounds; ++round) {
    ASSERT_TRUE(lab_->SetLoss(0, 1, 200).ok());
    for (uint32_t i = 0; i < kEach; ++i) a.Send(1, i);
    // The switch forwards in another thread, and in turn: what the other one sends later shows that
    // it has forwarded all.
    if (GetParam() == NetworkLab::Wiring::kSwitch) {
      b.Send(0, round);
      ASSERT_EQ(a.Receive(), round);
    }
    ASSERT_TRUE(lab_->SetLoss(0, 1, 0).ok());
    a.Send(1, kLast);
    received += b.ReceiveUntil(kLast).size();
  }
  // 1,600 of 2,000 with a standard deviation of 18.
  EXPECT_GT(received, 1500U);
  EXPECT_LT(received, 1700U);
}

TEST_P(NetworkLabTest, StopsAndKillsProcesses) {
  MAKE_LAB({.machines = 1});
  auto process = lab_->Start(0, {.argv = {FindProgram("sleep"), "1000"}});
  ASSERT_TRUE(process.ok()) << process.status();
  const pid_t pid = (*process)->pid();
  (*process)->Signal(SIGSTOP);
  EXPECT_TRUE((*process)->running());
  (*process)->Signal(SIGCONT);
  EXPECT_TRUE((*process)->running());
  lab_ = nullptr;
  EXPECT_TRUE(IsDead(pid));
  EXPECT_FALSE(HasInterface("lab0"));
}

// Each machine is given a device whose other end is here, so the device here goes when the
// machine's namespace ends.
TEST_P(NetworkLabTest, LeavesNothingWhenItsProcessIsKilled) {
  if (const Status can = NetworkLab::Available(GetParam()); !can.ok()) {
    GTEST_SKIP() << can.message();
  }
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t maker = fork();
  ASSERT_GE(maker, 0);
  if (maker == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto lab = NetworkLab::Create({.machines = 2, .wiring = GetParam()});
    if (!lab.ok()) _exit(1);
    pid_t sleepers[2] = {};
    for (size_t i = 0; i < 2; ++i) {
      auto process = (*lab)->Start(i, {.argv = {FindProgram("sleep"), "1000"}});
      const Status linked =
          (*lab)->network(i).Command({"ip", "link", "add", "end", "type", "veth", "peer", "name",
                                      fmt::format("end{}", i), "netns", std::to_string(getpid())});
      if (!process.ok() || !linked.ok()) _exit(2);
      sleepers[i] = (*process)->pid();
    }
    if (write(ready[1], sleepers, sizeof sleepers) != sizeof sleepers) _exit(3);
    for (;;) pause();
  }
  close(ready[1]);
  pid_t sleepers[2] = {};
  ASSERT_EQ(read(ready[0], sleepers, sizeof sleepers), static_cast<ssize_t>(sizeof sleepers));
  close(ready[0]);
  for (const char* const device : {"lab0", "end0", "end1"}) EXPECT_TRUE(HasInterface(device));
  for (const pid_t sleeper : sleepers) EXPECT_FALSE(IsDead(sleeper));

  ASSERT_EQ(kill(maker, SIGKILL), 0);
  ASSERT_EQ(waitpid(maker, nullptr, 0), maker);
  // The kernel removes namespaces in the background.
  const auto gone = [&] {
    return IsDead(sleepers[0]) && IsDead(sleepers[1]) && !HasInterface("lab0") &&
           !HasInterface("end0") && !HasInterface("end1");
  };
  const auto deadline = SteadyTime::now() + kPatience;
  while (!gone() && SteadyTime::now() < deadline) poll(nullptr, 0, 5);
  EXPECT_TRUE(IsDead(sleepers[0]));
  EXPECT_TRUE(IsDead(sleepers[1]));
  for (const char* const device : {"lab0", "end0", "end1"}) {
    EXPECT_FALSE(HasInterface(device)) << device;
  }
}

// Tests of one wiring alone.

class BridgeLabTest : public NetworkLabTest {};
INSTANTIATE_TEST_SUITE_P(Bridge, BridgeLabTest, ::testing::Values(NetworkLab::Wiring::kBridge));

TEST_P(BridgeLabTest, LinksHaveTheRateThatTheyWereGiven) {
  MAKE_LAB({.machines = 2});
  // Low enough that a busy machine is no limit, and each of some tries may be disturbed.
  constexpr double kRate = 16e6;
  ASSERT_TRUE(lab_->SetRate(1, static_cast<uint64_t>(kRate)).ok());
  for (const auto& [from, to] :
       {std::pair<size_t, size_t>(0, 1), std::pair<size_t, size_t>(1, 0)}) {
    double best = 0;
    for (int i = 0; i < 3 && std::abs(best / kRate - 1) > 0.2; ++i) {
      best = MeasureRate(*lab_, from, to, 3 << 20);
    }
    EXPECT_NEAR(best / kRate, 1, 0.2) << from << " to " << to;
  }
  ASSERT_TRUE(lab_->SetRate(1, 0).ok());
  EXPECT_GT(MeasureRate(*lab_, 0, 1, 3 << 20), 2 * kRate);
}

class SwitchLabTest : public NetworkLabTest {};
INSTANTIATE_TEST_SUITE_P(Switch, SwitchLabTest, ::testing::Values(NetworkLab::Wiring::kSwitch));

TEST_P(SwitchLabTest, EachDirectionTakesAtLeastItsDelay) {
  MAKE_LAB({.machines = 2, .delay = {.least = milliseconds(10), .jitter = milliseconds(2)}});
  Datagrams a(*lab_, 0), b(*lab_, 1);
  lab_->SetDelay(1, 0, {.least = milliseconds(30)});
  for (uint32_t i = 0; i < 10; ++i) {
    const auto begin = SteadyTime::now();
    a.Send(1, i);
    ASSERT_EQ(b.Receive(), i);
    const auto there = SteadyTime::now();
    EXPECT_GE(there - begin, milliseconds(10));
    b.Send(0, i);
    ASSERT_EQ(a.Receive(), i);
    EXPECT_GE(SteadyTime::now() - there, milliseconds(30));
  }
}

TEST_P(SwitchLabTest, JitterKeepsTheOrder) {
  MAKE_LAB({.machines = 2, .delay = {.least = milliseconds(1), .jitter = milliseconds(5)}});
  Datagrams a(*lab_, 0), b(*lab_, 1);
  for (uint32_t i = 0; i < 100; ++i) a.Send(1, i);
  for (uint32_t i = 0; i < 100; ++i) ASSERT_EQ(b.Receive(), i);
}

TEST_P(SwitchLabTest, FramesOvertakeReorderedOnes) {
  MAKE_LAB({.machines = 2, .delay = {.least = milliseconds(20), .reordered = 100}});
  Datagrams a(*lab_, 0), b(*lab_, 1);
  for (uint32_t i = 0; i < 100; ++i) a.Send(1, i);
  std::vector<uint32_t> received;
  for (uint32_t i = 0; i < 100; ++i) received.push_back(b.Receive().value_or(1000));
  EXPECT_FALSE(std::ranges::is_sorted(received));
  std::ranges::sort(received);
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(received[i], i);
}

TEST_P(SwitchLabTest, DuplicatedFramesComeTwice) {
  MAKE_LAB({.machines = 2});
  Datagrams a(*lab_, 0), b(*lab_, 1);
  lab_->SetDelay(0, 1, {.duplicated = 1000});
  for (uint32_t i = 0; i < 10; ++i) {
    a.Send(1, i);
    EXPECT_EQ(b.Receive(), i);
    EXPECT_EQ(b.Receive(), i);
  }
}

TEST(NetworkLabOptionsTest, RefusesMoreMachinesThanAddresses) {
  if (const Status can = NetworkLab::Available(); !can.ok()) GTEST_SKIP() << can.message();
  EXPECT_EQ(NetworkLab::Create({.machines = 17}).status().code(), StatusCode::kInvalidArgument);
  auto lab = NetworkLab::Create({.machines = 1, .wiring = NetworkLab::Wiring::kBridge});
  ASSERT_TRUE(lab.ok()) << lab.status();
}

}  // namespace
}  // namespace cairn::testing
