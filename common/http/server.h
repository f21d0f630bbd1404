#pragma once
// An HTTP/1.1 server for answers that take long and come in pieces. A few threads serve all
// connections: a request that waits for its answer, and a stream of events, hold no thread.
//
//   bytes -> RequestParser -> Handler::Handle -> Responder: Send | BeginStream, Write ..., End
//
// Everything that a client can make us hold has a bound (Options). TCP_NODELAY is on, and what was
// written since the last packet leaves in one piece: header and body apart would cost 40 ms with a
// peer that delays its acknowledgements.
//
// Written with Boost.Asio and Boost.Beast, whose types are only in the .cc files of this folder.
// HTTP/2, compression, ranges and upgrades are not supported.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/http/message.h"
#include "common/memory/fair_budget.h"
#include "common/net/tls.h"

namespace cairn::http {

// Takes one answer: Send, or BeginStream, any number of Write, and End. Thread-safe, but one answer
// has one writer at a time. After the connection has ended all calls do nothing. To let go of it
// before the answer is complete ends the connection, with 500 if nothing was sent yet.
class Responder {
 public:
  virtual ~Responder() = default;
  virtual void Send(Response response) = 0;
  // The body has no known length: what `head` has of it comes first.
  virtual void BeginStream(Response head) = 0;
  // False: the reader has gone, or it read so slowly that the server ended the connection.
  virtual bool Write(std::string_view data) = 0;
  virtual void End() = 0;
  // `aborted` runs once, on a thread of the server, if the connection ends before the answer is
  // complete: at once if it has ended. Otherwise a thread of the server destroys it. A later one
  // takes the place of an earlier one.
  virtual void OnAbort(std::function<void()> aborted) = 0;
  // Ends the connection, even if the answer is complete and its reader has not taken all of it.
  virtual void Abort() = 0;
};

// Called by the threads of the server, several at a time. Must not block.
class Handler {
 public:
  virtual ~Handler() = default;
  virtual void Handle(Request request, std::shared_ptr<Responder> responder) = 0;
  // The answer to what is not a request, or is too large (400, 408, 413, 431, 500, 501, 503, 505).
  virtual Response Refuse(int status, const std::string& message) = 0;
};

// Thread-safe.
class Server {
 public:
  struct Options {
    std::string listen;   // host:port, where port 0 picks a free one.
    std::string field;    // Its name in errors.
    net::TlsOptions tls;  // Read again when a file has changed.
    uint32_t threads = 2;
    // When all are taken, a connection goes whose last answer has left, and else the one that has
    // been without a complete request for longest. If each has one, the newcomer goes.
    uint32_t max_connections = 8192;
    uint32_t max_head_bytes = 16 << 10;  // The request line, and again the headers.
    uint64_t max_body_bytes = 8 << 20;   // The body of one request.
    // The bodies of all requests that are being read, or whose handler has not let go of the body.
    uint64_t all_body_bytes = 256 << 20;
    BudgetName body_budget = {.item = "bodies"};  // What refusals call these bytes.
    // Unread bytes of a stream whose reader is slow. Above this the stream ends.
    uint64_t max_unread_bytes = 256 << 10;
    uint64_t all_unread_bytes = 64 << 20;                 // Unread bytes of all answers.
    Duration request_timeout = std::chrono::seconds(30);  // To send a request (and to begin TLS).
    Duration idle_timeout = std::chrono::seconds(75);     // Between two requests.
    Duration write_timeout = std::chrono::seconds(30);    // For a reader that takes nothing.
    bool keep_alive = true;                               // False: one answer for a connection.
  };
  struct Stats {
    uint64_t connections = 0;      // Now.
    uint64_t unread_bytes = 0;     // Now: of answers that their readers have not taken yet.
    uint64_t body_bytes = 0;       // Now: of bodies, and of what their handlers made of them.
    uint64_t body_refusals = 0;    // Charges of these that found no room.
    uint64_t unread_refusals = 0;  // Answers that ended because all readers had taken too little.
    uint64_t accepted = 0;
    uint64_t refused_connections = 0;  // All places were taken.
    uint64_t refused_requests = 0;     // Not HTTP, too large.
    uint64_t slow_senders = 0;         // Connections that ended for that.
    uint64_t slow_readers = 0;
    uint64_t aborted = 0;  // Answers that were not complete when the connection ended.
  };

  // `handler` must outlive it. Errors name the field. UNAVAILABLE: the address cannot be bound.
  // The errors of net::Check and net::CheckBind: a setting is wrong.
  static Result<std::unique_ptr<Server>> Start(Options options, Handler* handler);
  // Ends all connections, without waiting for answers. Not on a thread of the server.
  ~Server();

  // With the port that was picked.
  const std::string& address() const;
  // Accepts no more connections and no more requests on those that are open, and waits until the
  // answers under way are complete. False: `timeout` passed first.
  bool Drain(Duration timeout);
  Stats GetStats() const;

 private:
  Server();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::http
