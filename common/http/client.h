#pragma once
// An HTTP/1.1 client for answers that take long and come in pieces. A few threads serve all calls:
// a call that waits for its answer, and a stream of events, hold no thread.
//
//   Client::Send -> connection (kept, or new) -> ResponseParser -> ResponseObserver
//
// Connections are kept for the next call. A server may close a kept one at any moment: a call that
// finds this out before the first byte of its answer is sent once more, on a new connection.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/http/message.h"

namespace cairn::http {

// A server: scheme, host and port.
struct Origin {
  bool tls = false;
  std::string host;  // Without brackets.
  uint16_t port = 0;

  bool operator==(const Origin&) const = default;
  auto operator<=>(const Origin&) const = default;
  // "host:port", with brackets where they are needed; as in the header Host.
  std::string Authority() const;
};

// "http://HOST[:PORT]" or "https://HOST[:PORT]". INVALID_ARGUMENT naming `field`.
Result<Origin> ParseOrigin(const std::string& text, const std::string& field);

struct ClientRequest {
  std::string method = "GET";  // Not HEAD, not CONNECT.
  std::string target = "/";
  // More headers. The client adds Host and Content-Length. REQUIRES: no line ends.
  std::vector<Header> headers = {};
  std::shared_ptr<const std::string> body = {};  // nullptr: none.
  uint64_t max_body_bytes = 0;                   // Limit for the body of the answer. 0: no limit.
  // Most time without any byte of the answer, from the end of the request on; also for a server
  // that takes nothing of the request.
  Duration silence = std::chrono::seconds(60);
};

struct ResponseHead {
  int status = 200;
  std::vector<Header> headers = {};

  // The value of the first header with this name, or nullptr. Names have no case.
  const std::string* Find(std::string_view name) const;
};

// Gets one answer: OnHead, any number of OnBody, OnEnd; or OnError, at any time before OnEnd. One
// thread at a time, possibly before Send has returned. Must not block.
class ResponseObserver {
 public:
  virtual ~ResponseObserver() = default;
  virtual void OnHead(const ResponseHead& head) = 0;
  // False: it wants nothing more, and gets nothing more. The connection is closed.
  virtual bool OnBody(std::string_view bytes) = 0;
  virtual void OnEnd() = 0;
  // UNAVAILABLE: no connection, or it broke. DEADLINE_EXCEEDED: silence. INTERNAL: the answer is
  // not HTTP, or too large. CANCELLED: it was cancelled.
  virtual void OnError(const Status& status) = 0;
  // As OnError: there was no connection, so the server has got nothing of the call.
  virtual void OnUnreached(const Status& status) { OnError(status); }
};

// Thread-safe. May be destroyed before its end, which changes nothing.
class ClientCall {
 public:
  virtual ~ClientCall() = default;
  // Closes the connection. The observer gets its end soon, unless it has got it.
  virtual void Cancel() = 0;
};

// Thread-safe.
class Client {
 public:
  struct Options {
    uint32_t threads = 1;
    // False: for http:// alone, which saves reading the authorities. https:// fails.
    bool tls = true;
    // PEM file with the authorities that sign servers' certificates. Empty: the system's.
    std::string authorities = {};
    Duration connect_timeout = std::chrono::seconds(5);  // With name lookup and TLS handshake.
    uint32_t max_head_bytes = 64 << 10;
    // Connections to one server that wait for the next call, and how long. Many servers close them
    // after 5 s.
    uint32_t max_idle = 64;
    Duration idle_timeout = std::chrono::seconds(4);
  };

  virtual ~Client() = default;
  virtual std::shared_ptr<ClientCall> Send(const Origin& origin, ClientRequest request,
                                           std::shared_ptr<ResponseObserver> observer) = 0;
  // Runs it once, after this time, on a thread of the client. If it is still waiting when the
  // client ends, it never runs.
  virtual void After(Duration delay, std::function<void()> run) = 0;
};

// Its end cancels all calls and waits for their observers. FAILED_PRECONDITION: the file of
// authorities cannot be used.
Result<std::unique_ptr<Client>> MakeClient(const Client::Options& options);

}  // namespace cairn::http
