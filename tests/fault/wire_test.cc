// Nonsense on the ports of a running node: it stays alive, keeps its memory, and serves the others.

#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "cairn/v1/cache.grpc.pb.h"
#include "common/metrics/admin_server.h"
#include "tests/fault/support/fault_support.h"

namespace cairn::fault {
namespace {

// A TCP connection to "127.0.0.1:PORT".
class Connection {
 public:
  explicit Connection(const std::string& address)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    open_ = connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
  }
  ~Connection() { close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool open() const { return open_; }
  // The other side has closed it.
  bool Closed() const {
    char byte = 0;
    const ssize_t n = recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return !open_ || n == 0 || (n < 0 && errno != EAGAIN);
  }
  // False when the other side has enough, or takes nothing for a while.
  bool Send(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      pollfd p{fd_, POLLOUT, 0};
      if (poll(&p, 1, 500) <= 0) return false;
      const ssize_t n =
          send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n <= 0) return false;
      at += static_cast<size_t>(n);
    }
    return true;
  }
  // The bytes that come until the end or `timeout`.
  std::string Receive(milliseconds timeout) {
    std::string all;
    char buffer[4096];
    for (pollfd p{fd_, POLLIN, 0}; poll(&p, 1, static_cast<int>(timeout.count())) > 0;) {
      const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      all.append(buffer, static_cast<size_t>(n));
    }
    return all;
  }

 private:
  int fd_;
  bool open_ = false;
};

std::string RandomBytes(std::mt19937_64& random, size_t bytes) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// A frame of HTTP/2 (RFC 9113, section 4.1).
std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  const size_t n = payload.size();
  std::string frame = {static_cast<char>(n >> 16),
                       static_cast<char>(n >> 8),
                       static_cast<char>(n),
                       static_cast<char>(type),
                       static_cast<char>(flags),
                       static_cast<char>(stream >> 24),
                       static_cast<char>(stream >> 16),
                       static_cast<char>(stream >> 8),
                       static_cast<char>(stream)};
  return frame + payload;
}

class FaultWireTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kMiB = 1 << 20;

  void SetUp() override {
    auto node = Node::Start({"--host.prefault", "false"});
    ASSERT_TRUE(node.ok()) << ToString(node.status());
    node_ = *std::move(node);
    client_ = ConnectAndOpen(node_->address(), model_);
    ASSERT_TRUE(Write(*client_, model_, keys_, 0, model_.whole()).status.ok());
    ServesOthers();
    resident_before_ = node_->process().ResidentBytes();
  }
  void TearDown() override {
    if (node_ == nullptr) return;
    ASSERT_TRUE(node_->process().running()) << node_->process().err();
    ServesOthers();
    EXPECT_EQ(StillHeld(*client_, 1, seconds(120)), "");
    EXPECT_TRUE(metrics::HttpGet(node_->admin(), "/livez", seconds(60)).ok());
    EXPECT_TRUE(metrics::HttpGet(node_->admin(), "/metrics", seconds(60)).ok());
    EXPECT_LT(node_->process().ResidentBytes(), resident_before_ + 150 * kMiB);
    const Status stopped = node_->Stop();
    EXPECT_TRUE(stopped.ok()) << ToString(stopped);
  }
  // Another client gets its bytes.
  void ServesOthers() {
    const ReadOutcome outcome = Read(*client_, model_, keys_);
    EXPECT_TRUE(outcome.status.ok()) << ToString(outcome.status);
    EXPECT_TRUE(outcome.wrong.empty());
    EXPECT_EQ(outcome.complete_blocks, keys_.size());
  }

  std::mt19937_64 random_{Seed()};
  const FaultModel model_{{}};
  const std::vector<BlockKey> keys_ = model_.MakePrompt(1);
  std::unique_ptr<Node> node_;
  std::unique_ptr<client::CacheClient> client_;
  uint64_t resident_before_ = 0;
};

TEST_F(FaultWireTest, RandomBytes) {
  for (uint32_t i = 0; i < Rounds(200); ++i) {
    for (const std::string& address : {node_->address(), node_->admin()}) {
      Connection connection(address);
      ASSERT_TRUE(connection.open());
      if (i % 3 == 1) connection.Send("GET / HTTP/1.1\r\n");
      if (i % 3 == 2) connection.Send(std::string(kPreface) + Frame(4, 0, 0, ""));
      connection.Send(RandomBytes(random_, 1 + random_() % 4096));
    }
  }
}

TEST_F(FaultWireTest, FramesOfNonsense) {
  for (uint32_t i = 0; i < Rounds(200); ++i) {
    Connection connection(node_->address());
    ASSERT_TRUE(connection.open());
    std::string bytes = std::string(kPreface) + Frame(4, 0, 0, "");
    for (uint32_t f = random_() % 8; f > 0; --f) {
      bytes += Frame(static_cast<uint8_t>(random_() % 12), static_cast<uint8_t>(random_()),
                     static_cast<uint32_t>(random_() % 6), RandomBytes(random_, random_() % 300));
    }
    connection.Send(bytes);
    if (i % 20 == 0) connection.Receive(milliseconds(10));
  }
}

TEST_F(FaultWireTest, HalfOpenConnections) {
  std::vector<std::unique_ptr<Connection>> connections;
  for (int i = 0; i < 200; ++i) {
    connections.push_back(
        std::make_unique<Connection>(i % 4 == 3 ? node_->admin() : node_->address()));
    ASSERT_TRUE(connections.back()->open());
    if (i % 4 == 1) connections.back()->Send(std::string(kPreface).substr(0, 10));
    if (i % 4 == 2) connections.back()->Send(std::string(kPreface) + Frame(4, 0, 0, "") + "\x01");
    if (i == 3) connections.back()->Send("GET /metrics HT");
  }
  // All of them still open.
  ServesOthers();
  auto another = ConnectAndOpen(node_->address(), model_);
  EXPECT_EQ(Read(*another, model_, keys_).complete_blocks, keys_.size());
}

// Connections that send a byte now and then, and come back as soon as they are closed.
class SlowConnections {
 public:
  SlowConnections(const std::string& address, size_t count) : address_(address), count_(count) {
    thread_ = std::thread([this] { Run(); });
    rounds_.wait(0);
  }
  ~SlowConnections() {
    stop_.store(true);
    thread_.join();
  }
  uint64_t rounds() const { return rounds_.load(); }

 private:
  struct One {
    std::unique_ptr<Connection> connection;
    size_t sent = 0;
  };
  void Run() {
    static constexpr std::string_view kRequest = "GET /metrics HTTP/1.1\r\nHost: a\r\nX: ";
    std::vector<One> all(count_);
    while (!stop_.load()) {
      for (One& one : all) {
        if (one.connection != nullptr && one.connection->Closed()) one = One();
        if (one.connection == nullptr) {
          one.connection = std::make_unique<Connection>(address_);
          continue;
        }
        const char next = one.sent < kRequest.size() ? kRequest[one.sent] : 'a';
        if (one.sent < 4000 && one.connection->Send({next})) ++one.sent;
      }
      // The test begins when all of them are there for the first time.
      rounds_.fetch_add(1);
      rounds_.notify_all();
      poll(nullptr, 0, 50);  // The pace of the slow.
    }
  }

  const std::string address_;
  const size_t count_;
  std::atomic<uint64_t> rounds_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// A place that slow clients keep is theirs for 30 s, so without the server's help they keep a
// probe out for longer than it tries here. One try may fail on a busy machine, where the newest
// connection can become the oldest one before its request is read.
TEST_F(FaultWireTest, SlowAdminConnectionsDoNotKeepProbesOut) {
  const SlowConnections slow(node_->admin(), 300);
  const auto answers = [&](const char* path) {
    return WaitUntil([&] { return metrics::HttpGet(node_->admin(), path, seconds(3)).ok(); },
                     seconds(20));
  };
  // For as long as it takes until all of them have come back several times.
  for (int probes = 0; probes < 14 || slow.rounds() < 60; ++probes) {
    ASSERT_TRUE(answers("/livez")) << "300 slow clients keep the probes out";
    poll(nullptr, 0, 20);
  }
  EXPECT_TRUE(answers("/readyz"));
}

// More than rpc.max_in_flight, over as many connections as make every one of them greedy.
TEST_F(FaultWireTest, IdlePushesDoNotCloseTheNode) {
  struct Push {
    grpc::ClientContext context;
    v1::PushResponse response;
    std::unique_ptr<grpc::ClientWriter<v1::PushFrame>> writer;
  };
  std::vector<std::unique_ptr<v1::Cache::Stub>> stubs;
  std::vector<std::unique_ptr<Push>> pushes;
  for (int c = 0; c < 11; ++c) {
    grpc::ChannelArguments own;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stubs.push_back(v1::Cache::NewStub(
        grpc::CreateCustomChannel(node_->address(), grpc::InsecureChannelCredentials(), own)));
    for (int i = 0; i < 100; ++i) {
      auto push = std::make_unique<Push>();
      push->writer = stubs.back()->Push(&push->context, &push->response);
      pushes.push_back(std::move(push));
    }
  }
  EXPECT_TRUE(WaitUntil(
      [&] {
        const auto open = node_->Metric("cairn_rpc_in_flight_requests", "method=\"Push\"");
        return open.ok() && *open >= 1024;
      },
      seconds(120)));
  int served = 0;
  for (int i = 0; i < 50; ++i) served += client_->Stat({.deadline = seconds(60)}).ok();
  EXPECT_EQ(served, 50);
  ServesOthers();
  for (const auto& push : pushes) push->context.TryCancel();
  for (const auto& push : pushes) push->writer->Finish();
}

// Nobody reads the node's stderr until the end: at debug level each call writes a line.
TEST(FaultStderrTest, AFullPipeCostsLinesOnly) {
  const FaultModel model{{}};
  const std::vector<BlockKey> keys = model.MakePrompt(1);
  auto node = Node::Start({"--host.prefault", "false", "--log.level", "debug"});
  ASSERT_TRUE(node.ok()) << ToString(node.status());
  const auto client = ConnectAndOpen((*node)->address(), model);
  ASSERT_TRUE(Write(*client, model, keys, 0, model.whole()).status.ok());
  int served = 0;
  constexpr int kCalls = 25'000;  // Lines of some 110 bytes: 64 KiB for the pipe, 1 MiB waiting.
  for (int i = 0; i < kCalls; ++i) {
    if (!client->Stat({.deadline = seconds(60)}).ok()) break;
    ++served;
  }
  EXPECT_EQ(served, kCalls);
  EXPECT_EQ(Read(*client, model, keys).complete_blocks, keys.size());
  EXPECT_TRUE(metrics::HttpGet((*node)->admin(), "/livez", seconds(60)).ok());
  const auto lost = (*node)->Metric("cairn_log_lost_lines_total", "reason=\"full\"");
  ASSERT_TRUE(lost.ok());
  EXPECT_GT(*lost, 0);
  // Reads it to the end.
  EXPECT_TRUE((*node)->Stop().ok());
  EXPECT_NE((*node)->process().err().find("log_lines_dropped"), std::string::npos);
  EXPECT_NE((*node)->process().err().find("stopped status=OK"), std::string::npos);
}

TEST_F(FaultWireTest, HugeHeaders) {
  for (int i = 0; i < 3; ++i) {
    Connection admin(node_->admin());
    admin.Send("GET /livez HTTP/1.1\r\nHost: a\r\nX-Large: ");
    for (int piece = 0; piece < 64 && admin.Send(std::string(1 << 16, 'a')); ++piece) {
    }
    // Refused, if it answers at all.
    const std::string answer = admin.Receive(milliseconds(200));
    EXPECT_EQ(answer.find("200 OK"), std::string::npos) << answer;
  }
  // HPACK literals (RFC 7541, section 6.2.2) and continuations without an end. 32 MiB: gRPC before
  // 1.53.2 keeps all of them in memory (CVE-2023-33953), however small the limits, so only TLS with
  // client certificates keeps strangers from sending more.
  Connection grpc(node_->address());
  // A value of 16,255 bytes.
  std::string block = {0, 1, 'x', 0x7f, static_cast<char>(0x80), static_cast<char>(0x7e)};
  block += std::string(16000, 'a');
  bool taken = grpc.Send(std::string(kPreface) + Frame(4, 0, 0, "") + Frame(1, 0, 1, block));
  for (int i = 0; i < 2048 && taken; ++i)
    taken = grpc.Send(Frame(9, 0, 1, std::string(16000, 'a')));
}

TEST_F(FaultWireTest, AdminRequestsOfNonsense) {
  for (const std::string& request :
       {std::string(
            "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n"),
        std::string("GET /../../../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n"),
        std::string("GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n"),
        std::string("DELETE /livez HTTP/1.1\r\nHost: a\r\n\r\n"),
        std::string("GET /metrics HTTP/9.9\r\n\r\n"), std::string("\r\n\r\n\r\n"),
        "GET /" + std::string(100'000, 'a') + " HTTP/1.1\r\nHost: a\r\n\r\n"}) {
    Connection connection(node_->admin());
    connection.Send(request);
    const std::string answer = connection.Receive(milliseconds(300));
    EXPECT_EQ(answer.find("200 OK"), std::string::npos)
        << request.substr(0, 60) << " -> " << answer.substr(0, 200);
    EXPECT_EQ(answer.find("root:"), std::string::npos);
  }
}

// Messages that are not protobuf, are cut, or are something else's, to every method.
TEST_F(FaultWireTest, MessagesOfNonsense) {
  auto channel = grpc::CreateChannel(node_->address(), grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  v1::MatchRequest valid;
  valid.set_session_id(std::string(16, 's'));
  valid.set_fingerprint(std::string(model_.fingerprint().View()));
  for (const BlockKey& key : keys_) valid.mutable_keys()->append(key.View());
  const std::string match = valid.SerializeAsString();
  uint64_t calls = 0, answered = 0, unexpected = 0;
  for (uint32_t i = 0; i < Rounds(40); ++i) {
    for (const std::string method :
         {"Cache/OpenSession", "Cache/OpenNamespace", "Cache/Match", "Cache/Fetch", "Cache/Exists",
          "Cache/Reserve", "Cache/Push", "Cache/Commit", "Cache/Abort", "Cache/Release",
          "Cache/RenewLease", "Cache/Watch", "Admin/ListNamespaces", "Admin/DropNamespace",
          "Admin/BumpEpoch", "Cache/NoSuchMethod"}) {
      std::string body;
      switch (random_() % 3) {
        case 0:
          body = RandomBytes(random_, random_() % 500);
          break;
        case 1:
          body = match.substr(0, random_() % match.size());
          break;
        default:
          body = match;
          body[random_() % body.size()] = static_cast<char>(random_());
      }
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() +
                           milliseconds(method == "Cache/Watch" ? 20 : 10'000));
      grpc::CompletionQueue queue;
      void* tag = nullptr;
      bool ok = false;
      const auto call = stub.PrepareCall(&context, "/cairn.v1." + method, &queue);
      call->StartCall(nullptr);
      queue.Next(&tag, &ok);
      const grpc::Slice slice(body);
      if (ok) {
        call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
        queue.Next(&tag, &ok);
      }
      // Streams that the node likes would stay: one answer is enough.
      grpc::ByteBuffer answer;
      call->Read(&answer, nullptr);
      queue.Next(&tag, &ok);
      if (ok) {
        ++answered;
        context.TryCancel();
      }
      grpc::Status status;
      call->Finish(&status, nullptr);
      queue.Next(&tag, &ok);
      ++calls;
      // A Watch that the node likes has nothing to say. INTERNAL is what gRPC says about bytes that
      // are no message.
      const bool fine =
          status.ok() ||
          (method == "Cache/Watch" && status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) ||
          status.error_code() == grpc::StatusCode::INVALID_ARGUMENT ||
          status.error_code() == grpc::StatusCode::INTERNAL ||
          status.error_code() == grpc::StatusCode::UNIMPLEMENTED ||
          status.error_code() == grpc::StatusCode::NOT_FOUND ||
          status.error_code() == grpc::StatusCode::CANCELLED;
      unexpected += !fine;
      EXPECT_TRUE(fine) << method << ": " << status.error_code() << " " << status.error_message();
      ASSERT_TRUE(node_->process().running()) << method << ": " << node_->process().err();
      if (unexpected > 5) return;
    }
  }
  std::printf("%llu calls, %llu of them answered\n", static_cast<unsigned long long>(calls),
              static_cast<unsigned long long>(answered));
}

}  // namespace
}  // namespace cairn::fault
