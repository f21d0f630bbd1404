// The real server over sockets, with clients that behave and clients that do not.
#include "common/http/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/concurrency/mutex.h"
#include "common/net/address.h"

namespace cairn::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kGet = "GET /now HTTP/1.1\r\nHost: x\r\n\r\n";
constexpr std::string_view kStream = "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n";

// Answers /now at once with the body that it got, and /hold, whose bodies it keeps. Keeps the
// responders of all other paths.
class TestHandler final : public Handler {
 public:
  void Handle(Request request, std::shared_ptr<Responder> responder) override {
    if (request.path == "/now") {
      responder->Send({.content_type = "text/plain", .body = "[" + request.body.text() + "]"});
      return;
    }
    if (request.path == "/hold") {
      {
        MutexLock lock(mu_);
        bodies_.push_back(std::move(request.body));
      }
      responder->Send({.content_type = "text/plain", .body = "held"});
      return;
    }
    responder->OnAbort([this] {
      MutexLock lock(mu_);
      ++aborted_;
      changed_.NotifyAll();
    });
    MutexLock lock(mu_);
    kept_.push_back(std::move(responder));
    changed_.NotifyAll();
  }
  Response Refuse(int status, const std::string& message) override {
    return {.status = status, .content_type = "text/plain", .body = message};
  }

  void LetGoOfBodies() {
    MutexLock lock(mu_);
    bodies_.clear();
  }
  std::shared_ptr<Responder> Take() {
    MutexLock lock(mu_);
    changed_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !kept_.empty(); });
    auto taken = kept_.front();
    kept_.erase(kept_.begin());
    return taken;
  }
  void WaitForAborts(int count) {
    MutexLock lock(mu_);
    changed_.Wait(mu_,
                  [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return aborted_ >= count; });
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<std::shared_ptr<Responder>> kept_ ABSL_GUARDED_BY(mu_);
  std::vector<ChargedString> bodies_ ABSL_GUARDED_BY(mu_);
  int aborted_ ABSL_GUARDED_BY(mu_) = 0;
};

class Client {
 public:
  explicit Client(const std::string& address, int receive_bytes = 0)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_bytes > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    }
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(net::ParseListenAddress(address, "address")->port);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { Close(); }

  int fd() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  void EndWriting() { shutdown(fd_, SHUT_WR); }
  // Bytes that the server does not read any more are not an error.
  void Send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      text.remove_prefix(static_cast<size_t>(n));
    }
  }
  // Reads until the text ends so, or the connection ends.
  std::string ReadUntil(std::string_view end) {
    std::string text;
    char buffer[4096];
    while (!text.ends_with(end)) {
      const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
      if (n <= 0) return text + "<end>";
      text.append(buffer, static_cast<size_t>(n));
    }
    return text;
  }
  std::string ReadAll() { return ReadUntil("\r\n no answer ends so \r\n"); }
  std::string Ask(std::string_view text, std::string_view end) {
    Send(text);
    return ReadUntil(end);
  }

 private:
  int fd_;
};

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    options_.listen = "127.0.0.1:0";
    options_.field = "http.listen";
  }
  void Start() {
    auto server = Server::Start(options_, &handler_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  const std::string& address() const { return server_->address(); }

  TestHandler handler_;
  Server::Options options_;
  std::unique_ptr<Server> server_;
};

TEST_F(HttpServerTest, AnswersManyRequestsOnOneConnection) {
  Start();
  Client client(address());
  for (int i = 0; i < 3; ++i) {
    const std::string answer = client.Ask(kGet, "[]");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(answer, HasSubstr("Content-Length: 2\r\n"));
  }
  const std::string last = client.Ask(
      "POST /now HTTP/1.1\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc", "nothing");
  EXPECT_THAT(last, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(last, EndsWith("[abc]<end>"));
  EXPECT_EQ(server_->GetStats().accepted, 1u);
}

TEST_F(HttpServerTest, AnswersRequestsThatCameTogetherOneAfterAnother) {
  Start();
  Client client(address());
  std::string many(kStream);
  for (int i = 0; i < 100; ++i) {
    many += "POST /now HTTP/1.1\r\nContent-Length: 2\r\n\r\n" + fmt::format("{:02}", i);
  }
  client.Send(many);
  const auto first = handler_.Take();
  first->Send({.body = "first"});
  const std::string all = client.ReadUntil("[99]");
  size_t at = all.find("first");
  for (int i = 0; i < 100; ++i) {
    const size_t next = all.find(fmt::format("[{:02}]", i), at);
    ASSERT_NE(next, std::string::npos) << i;
    at = next;
  }
}

TEST_F(HttpServerTest, StreamsPiecesAndKeepsTheConnection) {
  Start();
  Client client(address());
  client.Send(kStream);
  const auto stream = handler_.Take();
  stream->BeginStream({.content_type = "text/event-stream"});
  EXPECT_TRUE(stream->Write("one"));
  EXPECT_THAT(client.ReadUntil("3\r\none\r\n"), HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_TRUE(stream->Write("and two"));
  EXPECT_EQ(client.ReadUntil("two\r\n"), "7\r\nand two\r\n");
  stream->End();
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "0\r\n\r\n");
  EXPECT_FALSE(stream->Write("late"));
  EXPECT_THAT(client.Ask(kGet, "[]"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, EndsTheConnectionAfterAStreamToHttp10) {
  Start();
  Client client(address());
  client.Send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto stream = handler_.Take();
  stream->BeginStream({});
  stream->Write("one");
  stream->End();
  EXPECT_THAT(client.ReadAll(), EndsWith("\r\n\r\none<end>"));
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  Start();
  Client client(address());
  EXPECT_THAT(client.Ask("HEAD /now HTTP/1.1\r\n\r\n", "\r\n\r\n"),
              HasSubstr("Content-Length: 2\r\n"));
  EXPECT_THAT(client.Ask(kGet, "[]"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, AsksForABodyThatWaitsToBeAskedFor) {
  Start();
  Client client(address());
  EXPECT_EQ(client.Ask("POST /now HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n",
                       "\r\n\r\n"),
            "HTTP/1.1 100 Continue\r\n\r\n");
  EXPECT_THAT(client.Ask("abc", "[abc]"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, TellsTheWriterThatItsReaderHasGone) {
  Start();
  Client client(address());
  client.Send(kStream);
  const auto stream = handler_.Take();
  stream->BeginStream({});
  stream->Write("one");
  client.ReadUntil("one\r\n");
  client.Close();
  handler_.WaitForAborts(1);
  EXPECT_FALSE(stream->Write("two"));
  EXPECT_EQ(server_->GetStats().aborted, 1u);
}

TEST_F(HttpServerTest, AnAnswerThatNobodyWillGiveIsAnError) {
  Start();
  Client client(address());
  client.Send(kStream);
  handler_.Take();
  EXPECT_THAT(client.ReadUntil("no answer"), StartsWith("HTTP/1.1 500"));
  client.Send(kStream);
  {
    const auto stream = handler_.Take();
    stream->BeginStream({});
    stream->Write("half");
    client.ReadUntil("half\r\n");
  }
  // Cut off, without the last chunk: nobody can take it for a whole answer.
  EXPECT_EQ(client.ReadAll(), "<end>");
}

TEST_F(HttpServerTest, EndsAStreamWhoseReaderDoesNotRead) {
  options_.max_unread_bytes = 64 << 10;
  Start();
  Client slow(address(), 4096);
  slow.Send(kStream);
  const auto stream = handler_.Take();
  stream->BeginStream({});
  const std::string piece(16 << 10, 'x');
  // The kernel's buffers take some of it.
  int pieces = 0;
  while (stream->Write(piece)) ASSERT_LT(++pieces, 10'000);
  handler_.WaitForAborts(1);
  EXPECT_EQ(server_->GetStats().slow_readers, 1u);
  EXPECT_EQ(server_->GetStats().unread_bytes, 0u);
  Client other(address());
  EXPECT_THAT(other.Ask(kGet, "[]"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, EndsAnAnswerWhoseReaderTakesNothingForTooLong) {
  options_.write_timeout = milliseconds(200);
  Start();
  Client slow(address(), 4096);
  slow.Send(kStream);
  handler_.Take()->Send({.body = std::string(16 << 20, 'x')});
  handler_.WaitForAborts(1);
  EXPECT_EQ(server_->GetStats().slow_readers, 1u);
}

TEST_F(HttpServerTest, AnAnswerThatIsCompleteCanStillBeAborted) {
  Start();
  Client slow(address(), 4096);
  slow.Send(kStream);
  const auto answer = handler_.Take();
  answer->Send({.body = std::string(16 << 20, 'x')});
  answer->Abort();
  handler_.WaitForAborts(1);
  EXPECT_EQ(server_->GetStats().unread_bytes, 0u);
  answer->Abort();
}

TEST_F(HttpServerTest, GivesOneAnswerForAConnectionIfToldSo) {
  options_.keep_alive = false;
  Start();
  Client client(address());
  client.Send(kGet);
  client.Send(kGet);
  const std::string answer = client.ReadAll();
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n[]<end>"));
  EXPECT_EQ(answer.find("[]"), answer.rfind("[]"));
}

TEST_F(HttpServerTest, AnswersSlowSendersWithAnError) {
  options_.request_timeout = milliseconds(200);
  Start();
  // A client whose first byte comes too late is none: on a busy machine this one may be so, and
  // tries again.
  const auto answer_to = [this](std::string_view part) {
    std::string answer = "<end>";
    for (int i = 0; i < 100 && answer == "<end>"; ++i) {
      Client slow(address());
      slow.Send(part);
      answer = slow.ReadAll();
    }
    return answer;
  };
  EXPECT_THAT(answer_to("GET /now HTTP/1.1\r\nHos"), StartsWith("HTTP/1.1 408"));
  EXPECT_THAT(answer_to("POST /now HTTP/1.1\r\nContent-Length: 10\r\n\r\nab"),
              StartsWith("HTTP/1.1 408"));
  Client silent(address());
  EXPECT_EQ(silent.ReadAll(), "<end>");
  EXPECT_EQ(server_->GetStats().slow_senders, 2u);
}

TEST_F(HttpServerTest, EndsConnectionsThatAreIdle) {
  options_.idle_timeout = milliseconds(100);
  Start();
  Client client(address());
  EXPECT_THAT(client.Ask(kGet, "[]"), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(client.ReadAll(), "<end>");
}

TEST_F(HttpServerTest, RefusesWhatIsTooLargeAndSaysWhy) {
  options_.max_head_bytes = 4096;
  options_.max_body_bytes = 10'000;
  Start();
  Client head(address());
  EXPECT_THAT(head.Ask("GET / HTTP/1.1\r\nX: " + std::string(100'000, 'a'), "nothing"),
              StartsWith("HTTP/1.1 431"));
  // The client sends all of it before it reads.
  Client body(address());
  EXPECT_THAT(body.Ask("POST /now HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" +
                           std::string(1'000'000, 'a'),
                       "nothing"),
              StartsWith("HTTP/1.1 413"));
  Client chunks(address());
  EXPECT_THAT(
      chunks.Ask("POST /now HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "nothing"),
      StartsWith("HTTP/1.1 400"));
  Client half(address());
  half.Send("nonsense\r\n\r\n");
  half.EndWriting();
  EXPECT_THAT(half.ReadAll(), StartsWith("HTTP/1.1 400"));
  EXPECT_EQ(server_->GetStats().refused_requests, 4u);
}

TEST_F(HttpServerTest, BoundsTheBodiesOfAllRequests) {
  options_.all_body_bytes = 100'000;
  Start();
  const std::string half = "POST /now HTTP/1.1\r\nContent-Length: 90000\r\n\r\n";
  Client first(address()), second(address());
  first.Send(half + std::string(50'000, 'a'));
  // Each has at most what is left for others, so the second gets no more than a half of the rest.
  EXPECT_THAT(second.Ask(half + std::string(90'000, 'b'), "nothing"), StartsWith("HTTP/1.1 503"));
}

// Its connection has long forgotten it, and has answered.
TEST_F(HttpServerTest, ABodyCountsUntilWhoeverWorksOnItLetsGo) {
  options_.all_body_bytes = 100'000;
  options_.body_budget.setting = "the setting";
  Start();
  constexpr size_t kBytes = 20'000;
  const std::string request =
      fmt::format("POST /hold HTTP/1.1\r\nContent-Length: {}\r\n\r\n", kBytes) +
      std::string(kBytes, 'a');
  uint64_t held = 0;
  for (int i = 0; i < 10; ++i) {
    Client client(address());
    const std::string answer = client.Ask(request, "held");
    if (answer.starts_with("HTTP/1.1 200")) {
      ++held;
    } else {
      EXPECT_THAT(answer, StartsWith("HTTP/1.1 503"));
      EXPECT_THAT(answer, HasSubstr("body: memory of bodies: "));
      EXPECT_THAT(answer, HasSubstr("of 100000 bytes that are free; see the setting"));
    }
    EXPECT_EQ(server_->GetStats().body_bytes, held * kBytes);
  }
  EXPECT_GE(held, 3u);
  EXPECT_LE(held, 5u);
  EXPECT_EQ(server_->GetStats().body_refusals, 10 - held);
  handler_.LetGoOfBodies();
  EXPECT_EQ(server_->GetStats().body_bytes, 0u);
  Client again(address());
  EXPECT_THAT(again.Ask(request, "held"), StartsWith("HTTP/1.1 200"));
  // It outlives the server, too.
  server_.reset();
  handler_.LetGoOfBodies();
}

TEST_F(HttpServerTest, AConnectionThatWasRefusedIsTheFirstToGiveItsPlace) {
  options_.max_connections = 2;
  Start();
  Client silent(address());
  Client refused(address());
  // All of the answer, and the end of what the server says: the connection only lingers.
  EXPECT_THAT(refused.Ask("nonsense\r\n\r\n", "nothing"), StartsWith("HTTP/1.1 400"));
  Client newcomer(address());
  EXPECT_THAT(newcomer.Ask(kGet, "[]"), StartsWith("HTTP/1.1 200"));
  // It has waited for longer than the one that was refused.
  EXPECT_THAT(silent.Ask(kGet, "[]"), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(server_->GetStats().refused_connections, 0u);
}

TEST_F(HttpServerTest, GivesThePlaceOfASilentConnectionToANewcomer) {
  options_.max_connections = 3;
  Start();
  Client silent(address());
  std::vector<std::unique_ptr<Client>> busy;
  std::vector<std::shared_ptr<Responder>> streams;
  for (int i = 0; i < 2; ++i) {
    busy.push_back(std::make_unique<Client>(address()));
    busy.back()->Send(kStream);
    streams.push_back(handler_.Take());
  }
  Client newcomer(address());
  newcomer.Send(kStream);
  streams.push_back(handler_.Take());
  EXPECT_EQ(silent.ReadAll(), "<end>");
  // All have a request now.
  Client late(address());
  EXPECT_EQ(late.Ask(kGet, "nothing"), "<end>");
  EXPECT_EQ(server_->GetStats().refused_connections, 1u);
  streams.front()->Send({.body = "still here"});
  EXPECT_THAT(busy.front()->ReadUntil("still here"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, DrainWaitsForAnswersAndRefusesTheRest) {
  Start();
  Client idle(address()), busy(address());
  idle.Ask(kGet, "[]");
  busy.Send(kStream);
  const auto stream = handler_.Take();
  stream->BeginStream({});
  stream->Write("one");
  busy.ReadUntil("one\r\n");
  EXPECT_FALSE(server_->Drain(milliseconds(50)));
  EXPECT_EQ(idle.ReadAll(), "<end>");
  std::thread ender([&] {
    stream->End();
    EXPECT_EQ(busy.ReadUntil("0\r\n\r\n"), "0\r\n\r\n");
    busy.Close();
  });
  EXPECT_TRUE(server_->Drain(seconds(30)));
  ender.join();
}

TEST_F(HttpServerTest, ItsEndEndsAnswersThatAreUnderWay) {
  Start();
  Client client(address());
  client.Send(kStream);
  const auto stream = handler_.Take();
  stream->BeginStream({});
  stream->Write("one");
  server_.reset();
  handler_.WaitForAborts(1);
  EXPECT_FALSE(stream->Write("two"));
}

TEST_F(HttpServerTest, ManyWritersAndReadersAtTheSameTime) {
  Start();
  constexpr int kClients = 32, kPieces = 200;
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::thread> writers;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<Client>(address()));
    clients.back()->Send(kStream);
    writers.emplace_back([stream = handler_.Take()] {
      stream->BeginStream({});
      for (int piece = 0; piece < kPieces; ++piece) stream->Write("x");
      stream->End();
    });
  }
  for (std::thread& writer : writers) writer.join();
  for (const auto& client : clients) {
    std::string text = client->ReadUntil("0\r\n\r\n");
    text.erase(0, text.find("\r\n\r\n"));
    EXPECT_EQ(std::count(text.begin(), text.end(), 'x'), kPieces);
  }
  clients.clear();
  // A reader may have its bytes before the server knows that they went out.
  EXPECT_TRUE(server_->Drain(seconds(30)));
  EXPECT_EQ(server_->GetStats().unread_bytes, 0u);
}

TEST_F(HttpServerTest, RefusesToListenBeyondThisMachineWithoutTls) {
  options_.listen = "0.0.0.0:0";
  const auto server = Server::Start(options_, &handler_);
  EXPECT_EQ(server.status().code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(Message(server.status()), HasSubstr("http.listen"));
}

class HttpTlsTest : public HttpServerTest {
 protected:
  HttpTlsTest() : folder_(::testing::TempDir() + "cairn_http_tls." + std::to_string(getpid())) {
    std::filesystem::create_directories(folder_);
    const std::string command =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "
        "/CN=localhost -keyout " +
        folder_ + "/key.pem -out " + folder_ + "/cert.pem 2>/dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0);
    options_.tls.certificate = folder_ + "/cert.pem";
    options_.tls.private_key = folder_ + "/key.pem";
  }
  ~HttpTlsTest() override { std::filesystem::remove_all(folder_); }

  const std::string folder_;
};

TEST_F(HttpTlsTest, ServesThroughTls) {
  Start();
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  &SSL_CTX_free);
  ASSERT_EQ(SSL_CTX_load_verify_locations(context.get(), options_.tls.certificate.c_str(), nullptr),
            1);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  Client client(address());
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), &SSL_free);
  SSL_set_fd(ssl.get(), client.fd());
  ASSERT_EQ(SSL_connect(ssl.get()), 1);
  SSL_write(ssl.get(), kStream.data(), static_cast<int>(kStream.size()));
  const auto stream = handler_.Take();
  stream->BeginStream({});
  stream->Write("one");
  std::string text;
  char buffer[4096];
  while (!text.ends_with("one\r\n")) {
    const int n = SSL_read(ssl.get(), buffer, sizeof buffer);
    ASSERT_GT(n, 0);
    text.append(buffer, static_cast<size_t>(n));
  }
  EXPECT_THAT(text, StartsWith("HTTP/1.1 200"));
  client.Close();
  handler_.WaitForAborts(1);
}

TEST_F(HttpTlsTest, EndsConnectionsThatDoNotSpeakTls) {
  Start();
  Client client(address());
  EXPECT_THAT(client.Ask(kGet, "nothing"), EndsWith("<end>"));
}

TEST_F(HttpTlsTest, NamesTheSettingOfAFileThatCannotBeUsed) {
  options_.tls.private_key = folder_ + "/none.pem";
  const auto server = Server::Start(options_, &handler_);
  EXPECT_THAT(Message(server.status()), HasSubstr("tls.key"));
}

}  // namespace
}  // namespace cairn::http
