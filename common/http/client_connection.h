#pragma once
// One connection of the client to a server: sends one request at a time and reads its answer.
// Internal to this folder: it knows Boost.Asio.
//
//   connecting -> busy -> idle -> busy ...
//        |          |       |
//        +----------+-------+--> closed
//
// It always reads, to notice when its server closes it.

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/concurrency/mutex.h"
#include "common/http/client.h"
#include "common/http/response_parser.h"
#include "common/http/transport.h"

namespace cairn::http {

class ClientConnection;

// One call, through one connection or, if that was a kept one that its server closed, through two.
// Thread-safe.
class PendingCall final : public ClientCall, public std::enable_shared_from_this<PendingCall> {
 public:
  PendingCall(Origin to, ClientRequest wanted, std::shared_ptr<ResponseObserver> observer)
      : origin(std::move(to)), request(std::move(wanted)), observer_(std::move(observer)) {}

  void Cancel() override;

  // The rest belongs to its connection. False: it was cancelled.
  bool Attach(const std::shared_ptr<ClientConnection>& connection);
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  ResponseObserver& observer() { return *observer_; }
  void Fail(const Status& status) { std::exchange(observer_, nullptr)->OnError(status); }
  void FailUnreached(const Status& status) {
    std::exchange(observer_, nullptr)->OnUnreached(status);
  }
  void End() { std::exchange(observer_, nullptr)->OnEnd(); }

  const Origin origin;
  ClientRequest request;
  bool sent_again = false;

 private:
  std::shared_ptr<ResponseObserver> observer_;
  std::atomic<bool> cancelled_{false};
  Mutex mu_;
  std::weak_ptr<ClientConnection> connection_ ABSL_GUARDED_BY(mu_);
};

// State that all connections of a client share. Thread-safe.
struct ClientShared {
  explicit ClientShared(const Client::Options& o) : options(o) {}

  // Gives the call to a kept connection (unless `fresh`), or to a new one.
  static void Assign(const std::shared_ptr<ClientShared>& shared,
                     const std::shared_ptr<PendingCall>& call, bool fresh);

  const Client::Options options;
  // Constant after construction of the client. nullptr: it has no TLS.
  std::shared_ptr<boost::asio::ssl::context> tls;
  boost::asio::io_context io;

  Mutex mu;
  CondVar changed;  // A connection has ended.
  bool stopping ABSL_GUARDED_BY(mu) = false;
  std::unordered_set<std::shared_ptr<ClientConnection>> connections ABSL_GUARDED_BY(mu);
  // Last used last. All are in `connections`, too.
  std::map<Origin, std::vector<std::shared_ptr<ClientConnection>>> idle ABSL_GUARDED_BY(mu);
};

// Everything but the constructor and what says so happens on its strand.
class ClientConnection final : public std::enable_shared_from_this<ClientConnection> {
 public:
  ClientConnection(std::shared_ptr<ClientShared> shared, Origin origin);

  // These three: any thread.
  void PostStart(std::shared_ptr<PendingCall> call);
  void PostCancel(std::shared_ptr<const PendingCall> call);
  void PostClose();

 private:
  enum class State { kConnecting, kBusy, kIdle, kClosed };

  void Start(std::shared_ptr<PendingCall> call);
  void Connect();
  void OnConnected(const boost::system::error_code& ec);
  void SendRequest();
  boost::asio::const_buffer Unsent() const;
  void WriteSome();
  void Read();
  void OnRead(const boost::system::error_code& ec, size_t bytes);
  void Parse();
  void PassOn();
  void Finish();
  void KeepIdle();
  void Fail(const Status& status);
  // The server may have closed the connection while it was idle: then nothing was done.
  bool SendAgain();
  void Close();

  void SetDeadline(TimePoint deadline);
  void ArmTimer();
  void OnTimer();

  const std::shared_ptr<ClientShared> shared_;
  const Origin origin_;
  boost::asio::ip::tcp::socket socket_;  // Until it is connected.
  boost::asio::ip::tcp::resolver resolver_;
  std::unique_ptr<Transport> transport_;
  State state_ = State::kConnecting;
  std::shared_ptr<PendingCall> call_;
  std::unique_ptr<ResponseParser> parser_;  // While busy.
  bool head_passed_ = false;
  bool answered_ = false;                    // A byte of the answer has come.
  bool kept_ = false;                        // It has served a call before this one.
  std::string out_;                          // The head, and the beginning of the body.
  std::shared_ptr<const std::string> body_;  // The rest is sent from here: it is not copied.
  size_t body_at_ = 0;                       // Where that rest begins.
  size_t written_ = 0;                       // How many bytes of both were written.
  bool writing_ = false;
  std::string in_;  // Bytes that the parser has not used.
  std::string read_buffer_;
  boost::asio::steady_timer timer_;
  TimePoint deadline_ = TimePoint::max();
  TimePoint armed_ = TimePoint::max();
};

}  // namespace cairn::http
