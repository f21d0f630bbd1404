#pragma once
// One connection of a client: reads requests, one at a time, and writes their answers. Internal to
// this folder: it knows Boost.Asio.
//
//   handshake -> reading -> answering -> reading ...
//                   |            |
//                   +--> lingering --> closed
//
// A connection that answers keeps reading, to notice when its client goes. The bytes of the next
// request wait.

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "common/concurrency/mutex.h"
#include "common/http/request_parser.h"
#include "common/http/server.h"
#include "common/http/transport.h"
#include "common/memory/fair_budget.h"

namespace cairn::http {

class Connection;

// State that all connections of a server share. Thread-safe.
struct Shared {
  Shared(Server::Options o, Handler* h)
      : options(std::move(o)),
        handler(h),
        bodies(std::make_shared<FairBudget>(options.all_body_bytes, options.body_budget)),
        unread(std::make_shared<FairBudget>(options.all_unread_bytes)) {}

  const Server::Options options;
  Handler* const handler;
  boost::asio::io_context io;
  // Bodies of requests that are being read, and of those that their handler still holds.
  const std::shared_ptr<FairBudget> bodies;
  // Bytes of answers that their readers have not taken.
  const std::shared_ptr<FairBudget> unread;
  std::atomic<bool> draining{false};
  std::atomic<uint64_t> refused_requests{0}, slow_senders{0}, slow_readers{0}, aborted{0};

  Mutex mu;
  CondVar changed;  // A connection has ended.
  std::unordered_set<std::shared_ptr<Connection>> connections ABSL_GUARDED_BY(mu);
};

// One answer. Its writer is any thread; its connection takes what was written on its strand.
// Thread-safe.
class Exchange final : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<Connection> connection, Shared* shared)
      : shared_(shared), connection_(std::move(connection)), held_(shared->unread) {}

  void Send(Response response);
  void BeginStream(Response head);
  bool Write(std::string_view data);
  void End();
  void OnAbort(std::function<void()> aborted);
  void AbortAnswer();
  // Its writer let go of it.
  void Abandon();

  // The rest is the connection's.
  struct Output {
    std::optional<Response> head;  // Once, without its body.
    bool streamed = false;
    std::string body;
    bool complete = false;  // Nothing follows.
  };
  Output Take();
  // Bytes of a body that Take gave have left.
  void Written(uint64_t bytes);
  // The answer has left. Returns what is to be destroyed where no lock is held.
  std::function<void()> Finish();
  // The connection has ended. Returns what the writer wants to be told.
  std::function<void()> Abort();

 private:
  bool Append(std::string_view data, uint64_t most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Shared* const shared_;  // Lives as long as connection_.
  Mutex mu_;
  std::shared_ptr<Connection> connection_ ABSL_GUARDED_BY(mu_);  // nullptr: it has ended.
  std::optional<Response> head_ ABSL_GUARDED_BY(mu_);
  std::string pending_ ABSL_GUARDED_BY(mu_);
  ByteShare held_ ABSL_GUARDED_BY(mu_);  // pending_, and what is being written.
  bool begun_ ABSL_GUARDED_BY(mu_) = false;
  bool streamed_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool too_slow_ ABSL_GUARDED_BY(mu_) = false;  // The connection is about to end for that.
  std::function<void()> aborted_ ABSL_GUARDED_BY(mu_);
};

// Everything but the constructor and what says so happens on the strand of its socket.
class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Shared> shared, std::unique_ptr<Transport> transport);

  // These four: any thread.
  void Start();
  void PostFlush();
  void PostClose(bool slow_reader);
  void PostDrain();
  // Since when it has been without a complete request. TimePoint::max(): it has one, or gives way.
  // TimePoint::min(): its answer has left, and it only waits for its client's end. Any thread.
  TimePoint waiting_since() const {
    return gives_way_.load(std::memory_order_relaxed)
               ? TimePoint::max()
               : waiting_since_.load(std::memory_order_relaxed);
  }
  // It is about to end for a newcomer: nobody else asks it to.
  void GiveWay() { gives_way_ = true; }

 private:
  enum class State { kHandshake, kReading, kAnswering, kLingering, kClosed };

  void Read();
  void OnRead(const boost::system::error_code& ec, size_t bytes);
  void Parse();
  void Dispatch();
  void Refuse(int status, const std::string& message);
  void Flush();
  void WriteSome();
  void OnWritten(const boost::system::error_code& ec, size_t bytes);
  void FinishAnswer();
  void NextRequest();
  void Linger();
  void Close();
  std::string RenderHead(const Response& head, bool streamed, size_t length);

  void SetDeadline(TimePoint deadline);
  void ArmTimer();
  void OnTimer();
  void OnDeadline();

  const std::shared_ptr<Shared> shared_;
  const std::unique_ptr<Transport> transport_;
  State state_ = State::kHandshake;
  std::atomic<TimePoint> waiting_since_;
  std::atomic<bool> gives_way_{false};

  std::unique_ptr<RequestParser> parser_;  // While reading.
  std::string in_;                         // Bytes that the parser has not used.
  std::string read_buffer_;
  bool reading_ = false;  // A read is under way.
  bool continue_sent_ = false;
  bool idle_ = false;     // Nothing of the next request has come.
  bool refused_ = false;  // Anything else that the client sends is ignored.

  std::shared_ptr<Exchange> exchange_;  // While answering.
  bool http_1_1_ = true, keep_alive_ = true, head_only_ = false, chunked_ = false;
  std::string out_;
  size_t written_ = 0;         // How many bytes of out_ were written.
  uint64_t out_body_ = 0;      // How many bytes of out_ belong to the body of the exchange.
  bool writing_ = false;       // A write is under way.
  bool out_complete_ = false;  // out_ ends the answer.

  boost::asio::steady_timer timer_;
  TimePoint deadline_ = TimePoint::max();
  TimePoint armed_ = TimePoint::max();
};

}  // namespace cairn::http
