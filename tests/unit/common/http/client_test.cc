// The real client over sockets, with servers that behave and servers that do not.
#include "common/http/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "common/concurrency/mutex.h"
#include "common/http/server.h"
#include "common/status/matchers.h"

namespace cairn::http {
namespace {

using ::cairn::testing::StatusIs;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::_;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Thread-safe.
class Got final : public ResponseObserver {
 public:
  void OnHead(const ResponseHead& got) override {
    MutexLock lock(mu_);
    head_ = got;
  }
  bool OnBody(std::string_view bytes) override {
    MutexLock lock(mu_);
    body_ += bytes;
    changed_.NotifyAll();
    return body_.size() <= most;
  }
  void OnEnd() override { End(OkStatus()); }
  void OnError(const Status& status) override { End(status); }
  void OnUnreached(const Status& status) override {
    unreached = true;
    End(status);
  }

  Status Wait() {
    MutexLock lock(mu_);
    changed_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return end_.has_value(); });
    return *end_;
  }
  void WaitForBody(const std::string& body) {
    MutexLock lock(mu_);
    changed_.Wait(mu_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return body_ == body; });
  }
  std::string body() {
    MutexLock lock(mu_);
    return body_;
  }
  int status() {
    MutexLock lock(mu_);
    return head_.status;
  }
  std::atomic<size_t> most{1 << 30};
  std::atomic<bool> unreached{false};

 private:
  void End(const Status& status) {
    MutexLock lock(mu_);
    EXPECT_FALSE(end_.has_value());
    end_ = status;
    changed_.NotifyAll();
  }
  Mutex mu_;
  CondVar changed_;
  ResponseHead head_ ABSL_GUARDED_BY(mu_);
  std::string body_ ABSL_GUARDED_BY(mu_);
  std::optional<Status> end_ ABSL_GUARDED_BY(mu_);
};

// Answers with what it got; keeps what is sent to /stream.
class EchoHandler final : public Handler {
 public:
  void Handle(Request request, std::shared_ptr<Responder> responder) override {
    if (request.path == "/stream") {
      responder->OnAbort([this] {
        MutexLock lock(mu_);
        ++aborted_;
        changed_.NotifyAll();
      });
      MutexLock lock(mu_);
      kept_.push_back(std::move(responder));
      changed_.NotifyAll();
      return;
    }
    const std::string* const host = request.Find("host");
    responder->Send(
        {.body = request.method + " " + request.path + " " + *host + " " + request.body.text()});
  }
  Response Refuse(int status, const std::string& message) override {
    return {.status = status, .body = message};
  }
  std::shared_ptr<Responder> Take() {
    MutexLock lock(mu_);
    changed_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !kept_.empty(); });
    auto taken = std::move(kept_.back());
    kept_.pop_back();
    return taken;
  }
  void WaitForAborts(int count) {
    MutexLock lock(mu_);
    changed_.Wait(mu_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return aborted_ >= count; });
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<std::shared_ptr<Responder>> kept_ ABSL_GUARDED_BY(mu_);
  int aborted_ ABSL_GUARDED_BY(mu_) = 0;
};

// Answers each connection with the next of these texts, once it has got something, and closes it.
class RawServer {
 public:
  explicit RawServer(std::vector<std::string> answers) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
    socklen_t size = sizeof at;
    getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size);
    origin_ = {.tls = false, .host = "127.0.0.1", .port = ntohs(at.sin_port)};
    EXPECT_EQ(listen(fd_, 16), 0);
    thread_ = std::thread([this, answers = std::move(answers)] {
      for (const std::string& answer : answers) {
        const int client = accept(fd_, nullptr, nullptr);
        if (client < 0) return;
        char buffer[4096];
        if (recv(client, buffer, sizeof buffer, 0) > 0) {
          ++requests_;
          (void)send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
        }
        // A keep-alive answer is for one that keeps the connection open a moment.
        if (answer.find("close-later") != std::string::npos) {
          while (!close_ && recv(client, buffer, sizeof buffer, MSG_DONTWAIT) < 0) {
            std::this_thread::yield();
          }
        }
        close(client);
      }
    });
  }
  ~RawServer() {
    close_ = true;
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }
  const Origin& origin() const { return origin_; }
  int requests() const { return requests_; }

 private:
  int fd_;
  Origin origin_;
  std::atomic<bool> close_{false};
  std::atomic<int> requests_{0};
  std::thread thread_;
};

class HttpClientTest : public ::testing::Test {
 protected:
  void Start(const Client::Options& options = {}) {
    auto client = MakeClient(options);
    ASSERT_OK(client);
    client_ = *std::move(client);
  }
  void Serve(Server::Options options = {}) {
    options.listen = "127.0.0.1:0";
    options.field = "listen";
    auto server = Server::Start(std::move(options), &handler_);
    ASSERT_OK(server);
    server_ = *std::move(server);
    auto origin = ParseOrigin("http://" + server_->address(), "url");
    ASSERT_OK(origin);
    origin_ = *std::move(origin);
  }
  std::shared_ptr<Got> Send(const Origin& origin, ClientRequest request = {}) {
    auto got = std::make_shared<Got>();
    call_ = client_->Send(origin, std::move(request), got);
    return got;
  }
  EchoHandler handler_;
  std::unique_ptr<Server> server_;
  Origin origin_;
  std::unique_ptr<Client> client_;
  std::shared_ptr<ClientCall> call_;
};

TEST(OriginTest, IsAnUrlWithoutAPath) {
  const auto origin = [](const std::string& text) { return ParseOrigin(text, "workers"); };
  EXPECT_EQ(*origin("http://a.b-c:8000"), (Origin{false, "a.b-c", 8000}));
  EXPECT_EQ(*origin("https://a/"), (Origin{true, "a", 443}));
  EXPECT_EQ(origin("http://[::1]:80")->Authority(), "[::1]:80");
  for (const char* text : {"", "a:80", "ftp://a", "http://", "http://:80", "http://a:0",
                           "http://a:99999", "http://a:80x", "http://a/v1", "http://a b",
                           "http://u@a", "http://[::1", "http://[x]:80"}) {
    EXPECT_THAT(origin(text).status(), StatusIs(StatusCode::kInvalidArgument, _)) << text;
    EXPECT_THAT(Message(origin(text).status()), HasSubstr("workers: got")) << text;
  }
}

TEST(OriginTest, AnErrorDoesNotShowAUser) {
  const auto origin = ParseOrigin("https://somebody:secret@a:443", "url");
  EXPECT_THAT(Message(origin.status()), HasSubstr("url: got a user"));
  EXPECT_THAT(Message(origin.status()), ::testing::Not(HasSubstr("secret")));
}

TEST_F(HttpClientTest, SendsBodiesAndKeepsTheConnection) {
  Serve();
  Start();
  // Around what leaves in one piece with the head, and much more.
  for (const size_t bytes :
       {size_t{3}, size_t{64 << 10}, size_t{(64 << 10) + 1}, size_t{3 << 20}}) {
    std::string body(bytes, 'x');
    body.front() = 'a';
    body.back() = 'z';
    const auto got = Send(
        origin_,
        {.method = "POST", .target = "/now", .body = std::make_shared<const std::string>(body)});
    EXPECT_OK(got->Wait());
    EXPECT_EQ(got->status(), 200);
    EXPECT_TRUE(got->body() == "POST /now " + server_->address() + " " + body) << bytes;
  }
  EXPECT_EQ(server_->GetStats().accepted, 1u);
}

TEST_F(HttpClientTest, GetsAStreamPieceByPiece) {
  Serve();
  Start();
  const auto got = Send(origin_, {.target = "/stream"});
  const auto responder = handler_.Take();
  responder->BeginStream({.content_type = "text/event-stream"});
  responder->Write("one");
  got->WaitForBody("one");
  responder->Write("two");
  got->WaitForBody("onetwo");
  responder->End();
  EXPECT_OK(got->Wait());
}

TEST_F(HttpClientTest, ManyStreamsNeedFewThreads) {
  Serve();
  Start({.threads = 1});
  std::vector<std::shared_ptr<Got>> all;
  std::vector<std::shared_ptr<ClientCall>> calls;
  std::vector<std::shared_ptr<Responder>> responders;
  for (int i = 0; i < 100; ++i) {
    all.push_back(Send(origin_, {.target = "/stream"}));
    calls.push_back(call_);
    responders.push_back(handler_.Take());
    responders.back()->BeginStream({});
  }
  for (const auto& responder : responders) responder->Write("x");
  for (const auto& got : all) got->WaitForBody("x");
  for (const auto& responder : responders) responder->End();
  for (const auto& got : all) EXPECT_OK(got->Wait());
}

// Boost starts a thread with the first name that it looks up, and throws if it has no room.
TEST_F(HttpClientTest, AnAddressNeedsNoThreadThatFindsNames) {
  const auto threads = [] {
    const std::filesystem::directory_iterator begin("/proc/self/task");
    return std::distance(begin, std::filesystem::directory_iterator());
  };
  Serve();
  Start();
  const auto before = threads();
  EXPECT_OK(Send(origin_, {.target = "/now"})->Wait());
  EXPECT_EQ(threads(), before);
  Origin named = origin_;
  named.host = "localhost";
  EXPECT_OK(Send(named, {.target = "/now"})->Wait());
  EXPECT_EQ(threads(), before + 1);
}

TEST_F(HttpClientTest, CancelClosesTheConnection) {
  Serve();
  Start();
  const auto got = Send(origin_, {.target = "/stream"});
  const auto responder = handler_.Take();
  responder->BeginStream({});
  responder->Write("x");
  got->WaitForBody("x");
  call_->Cancel();
  EXPECT_THAT(got->Wait(), StatusIs(StatusCode::kCancelled, _));
  handler_.WaitForAborts(1);
  call_->Cancel();
}

TEST_F(HttpClientTest, AnObserverThatHasEnoughClosesTheConnection) {
  Serve();
  Start();
  const auto got = Send(origin_, {.target = "/stream"});
  got->most = 3;
  const auto responder = handler_.Take();
  responder->BeginStream({});
  responder->Write("abcd");
  handler_.WaitForAborts(1);
}

TEST_F(HttpClientTest, ItsEndCancelsWhatIsUnderWay) {
  Serve();
  Start();
  const auto got = Send(origin_, {.target = "/stream"});
  // Held: the server ends the connection of an answer that nobody holds.
  const auto responder = handler_.Take();
  responder->BeginStream({});
  client_->After(std::chrono::hours(1), [] { ADD_FAILURE(); });
  client_.reset();
  EXPECT_THAT(got->Wait(), StatusIs(StatusCode::kCancelled, _));
}

// Which of the two was faster nobody can say, but each call ends once, and the client ends.
TEST_F(HttpClientTest, ItsEndMayMeetThatOfTheServer) {
  Serve();
  for (int i = 0; i < 20; ++i) {
    Start();
    std::vector<std::shared_ptr<Got>> all;
    std::vector<std::shared_ptr<Responder>> responders;
    for (int call = 0; call < 4; ++call) {
      all.push_back(Send(origin_, {.target = "/stream"}));
      responders.push_back(handler_.Take());
      if (call % 2 == 0) responders.back()->BeginStream({});
    }
    std::thread server([&] { responders.clear(); });
    client_.reset();
    server.join();
    for (const auto& got : all) {
      EXPECT_THAT(got->Wait().code(),
                  AnyOf(StatusCode::kCancelled, StatusCode::kUnavailable, StatusCode::kOk));
    }
  }
}

TEST_F(HttpClientTest, RunsWhatIsDue) {
  Start();
  const auto done = std::make_shared<Got>();
  client_->After(milliseconds(1), [done] { done->OnEnd(); });
  EXPECT_OK(done->Wait());
}

TEST_F(HttpClientTest, NobodyListens) {
  Start();
  Origin gone;
  {
    const RawServer server({});
    gone = server.origin();
  }
  const auto got = Send(gone);
  EXPECT_THAT(got->Wait(), StatusIs(StatusCode::kUnavailable, _));
  EXPECT_TRUE(got->unreached);
  EXPECT_THAT(Send({.host = "does-not-exist.invalid", .port = 80})->Wait(),
              StatusIs(StatusCode::kUnavailable, _));
}

TEST_F(HttpClientTest, WithoutTlsItRefusesToBeginIt) {
  Serve();
  Start({.tls = false});
  auto plain = Send(origin_);
  EXPECT_OK(plain->Wait());
  origin_.tls = true;
  const auto got = Send(origin_);
  EXPECT_THAT(got->Wait(), StatusIs(StatusCode::kUnavailable, HasSubstr("the client has none")));
}

TEST_F(HttpClientTest, BadServersAreErrors) {
  Start({.max_head_bytes = 1024});
  const auto answer = [&](const std::string& text) {
    const RawServer server({text});
    const auto got = Send(server.origin(), {.max_body_bytes = 10});
    return got->Wait();
  };
  EXPECT_THAT(answer(""), StatusIs(StatusCode::kUnavailable, _));
  EXPECT_THAT(answer("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"),
              StatusIs(StatusCode::kUnavailable, _));
  EXPECT_THAT(answer("nonsense\r\n\r\n"), StatusIs(StatusCode::kInternal, _));
  EXPECT_THAT(answer("HTTP/1.1 200 OK\r\nX: " + std::string(4000, 'x')),
              StatusIs(StatusCode::kInternal, _));
  EXPECT_THAT(answer("HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello there"),
              StatusIs(StatusCode::kInternal, _));
  EXPECT_OK(answer("HTTP/1.1 200 OK\r\n\r\nhello"));
}

TEST_F(HttpClientTest, SilenceHasAnEnd) {
  Serve();
  Start();
  const auto got = Send(origin_, {.target = "/stream", .silence = milliseconds(20)});
  EXPECT_THAT(got->Wait(), StatusIs(StatusCode::kDeadlineExceeded, _));
  handler_.WaitForAborts(1);
}

// A server that has closed a kept connection did nothing with the request: it is sent once more.
TEST_F(HttpClientTest, AKeptConnectionThatWasClosedCostsNothing) {
  Start();
  const std::string ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: close-later\r\n\r\nok";
  const RawServer server({ok, ok});
  EXPECT_OK(Send(server.origin())->Wait());
  // The server closes it when this request has come, before it answers.
  EXPECT_OK(Send(server.origin())->Wait());
  EXPECT_EQ(server.requests(), 2);
}

class HttpClientTlsTest : public HttpClientTest {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "http_client_tls." + std::to_string(getpid());
    std::filesystem::create_directory(folder_);
    const std::string command =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
        "-subj /CN=test -addext subjectAltName=DNS:localhost -keyout " +
        folder_ + "/key.pem -out " + folder_ + "/cert.pem 2>/dev/null";
    ASSERT_EQ(std::system(command.c_str()), 0);
    Server::Options options;
    options.tls.certificate = folder_ + "/cert.pem";
    options.tls.private_key = folder_ + "/key.pem";
    Serve(std::move(options));
    origin_.tls = true;
    origin_.host = "localhost";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(HttpClientTlsTest, TrustsTheAuthorityOfTheName) {
  Start({.authorities = folder_ + "/cert.pem"});
  EXPECT_OK(Send(origin_, {.target = "/now"})->Wait());
  // The certificate is not one of the address.
  origin_.host = "127.0.0.1";
  EXPECT_THAT(Send(origin_, {.target = "/now"})->Wait(), StatusIs(StatusCode::kUnavailable, _));
}

TEST_F(HttpClientTlsTest, RefusesStrangers) {
  Start();
  const Status status = Send(origin_, {.target = "/now"})->Wait();
  EXPECT_THAT(status, StatusIs(StatusCode::kUnavailable, _));
  EXPECT_THAT(Message(status), HasSubstr("TLS"));
  EXPECT_THAT(MakeClient({.authorities = "/does/not/exist"}).status(),
              StatusIs(StatusCode::kFailedPrecondition, _));
}

}  // namespace
}  // namespace cairn::http
