#include "common/rpc/operator_socket.h"

#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "common/concurrency/mutex.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/status/matchers.h"

namespace cairn::rpc {
namespace {

constexpr int kMostDescriptors = 1024;

// A call that ends when the test says so.
class Held final : public CallReactor {
 public:
  // `gone` is set when the client is.
  Held(std::unique_ptr<RawCall> call, std::atomic<bool>* gone, std::atomic<bool>* over)
      : CallReactor(std::move(call)), gone_(*gone), over_(*over) {}
  void End() { Finish(grpc::Status()); }
  std::string peer() { return context().peer(); }

 private:
  void OnCancel() override { gone_ = true; }
  void OnDone() override {
    over_ = true;
    delete this;
  }
  std::atomic<bool>& gone_;
  std::atomic<bool>& over_;
};

// Polls, because neither gRPC nor the kernel tells.
template <typename Condition>
bool Comes(Condition condition) {
  const TimePoint until = SteadyClock::Get().Now() + std::chrono::minutes(1);
  while (!condition()) {
    if (SteadyClock::Get().Now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

class OperatorSocketTest : public ::testing::Test {
 protected:
  OperatorSocketTest() {
    char folder[] = "/tmp/cairn-operators-XXXXXX";
    folder_ = mkdtemp(folder);
    path_ = folder_ + "/admin.sock";
    server_.calls()->AddStream("/Held", [this](std::unique_ptr<RawCall> call) {
      auto* const held = new Held(std::move(call), &gone_, &over_);
      MutexLock lock(mu_);
      held_ = held;
    });
    EXPECT_OK(server_.Listen({.listen = "127.0.0.1:0"}));
    server_.Serve();
    EXPECT_OK(server_.ListenForOperators(path_));
  }
  ~OperatorSocketTest() override {
    server_.Shutdown(Duration(0));
    std::filesystem::remove_all(folder_);
  }

  Held* held() {
    MutexLock lock(mu_);
    return held_;
  }
  // A process that connects, and stays until it is killed.
  static pid_t Visitor(const std::string& path) {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    path.copy(to.sun_path, sizeof to.sun_path - 1);
    const pid_t child = fork();
    if (child != 0) return child;
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) _exit(1);
    for (;;) pause();
  }
  static bool IsThere(pid_t pid) {
    for (int fd = 0; fd < kMostDescriptors; ++fd) {
      const auto who = OperatorOf(fmt::format("fd:{}", fd));
      if (who && who->pid == pid) return true;
    }
    return false;
  }

  std::string folder_, path_;
  std::atomic<bool> gone_{false}, over_{false};
  Mutex mu_;
  Held* held_ ABSL_GUARDED_BY(mu_) = nullptr;
  Server server_;
};

// A call under way keeps the descriptor of a connection that is gone. Otherwise the next one would
// get its number, and the audit would name the wrong process.
TEST_F(OperatorSocketTest, ACallKeepsItsCallerWhateverConnectsAfterIt) {
  grpc::CompletionQueue queue;
  std::string peer;
  {
    auto channel = grpc::CreateChannel("unix:" + path_, grpc::InsecureChannelCredentials());
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    const auto call = stub.PrepareCall(&context, "/Held", &queue);
    call->StartCall(nullptr);
    ASSERT_TRUE(Comes([this] { return held() != nullptr; }));
    peer = held()->peer();
    const auto who = OperatorOf(peer);
    ASSERT_TRUE(who.has_value()) << peer;
    EXPECT_EQ(who->uid, getuid());
    EXPECT_EQ(who->pid, getpid());
    EXPECT_EQ(who->Describe(), fmt::format("uid {}, pid {}", getuid(), getpid()));
    context.TryCancel();
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    grpc::Status status;
    call->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
  }
  queue.Shutdown();
  ASSERT_TRUE(Comes([this] { return gone_.load(); }));
  std::vector<pid_t> visitors;
  for (int i = 0; i < 5; ++i) {
    visitors.push_back(Visitor(path_));
    EXPECT_TRUE(Comes([&] { return IsThere(visitors.back()); }));
    const auto who = OperatorOf(peer);
    ASSERT_TRUE(who.has_value());
    EXPECT_EQ(who->pid, getpid());
  }
  held()->End();
  EXPECT_TRUE(Comes([this] { return over_.load(); }));
  // What is known of a connection goes when it does.
  EXPECT_TRUE(Comes([&] {
    const auto who = OperatorOf(peer);
    return !who || who->pid != getpid();
  }));
  for (const pid_t visitor : visitors) {
    kill(visitor, SIGKILL);
    waitpid(visitor, nullptr, 0);
    EXPECT_TRUE(Comes([&] { return !IsThere(visitor); }));
  }
}

TEST_F(OperatorSocketTest, OtherConnectionsAreNobodys) {
  const int other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  for (const std::string& peer :
       {std::string("ipv4:127.0.0.1:4711"), std::string("unix:"), std::string("fd:"),
        std::string("fd:x"), std::string("fd:1x"), std::string("fd:-1"),
        std::string("fd:99999999999999999999"), fmt::format("fd:{}", other)}) {
    EXPECT_FALSE(OperatorOf(peer).has_value()) << peer;
  }
  close(other);
}

}  // namespace
}  // namespace cairn::rpc
