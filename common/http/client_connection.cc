#include "common/http/client_connection.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/system/system_error.hpp>
#include <utility>

namespace cairn::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Events of a stream are short. A larger buffer is for a connection that fills this one.
constexpr size_t kLeastReadBytes = 1 << 10;
constexpr size_t kMostReadBytes = 64 << 10;
// Limit for a body that leaves in one piece with the head: a server that delays its
// acknowledgements would make a second piece wait. A longer body is sent from the place where it
// lies.
constexpr size_t kBodyWithHead = 64 << 10;

// The head, and the beginning of the body.
std::string Render(const Origin& origin, const ClientRequest& request) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n", request.method, request.target,
                                 origin.Authority());
  for (const Header& header : request.headers) {
    text += fmt::format("{}: {}\r\n", header.name, header.value);
  }
  if (request.body != nullptr) text += fmt::format("Content-Length: {}\r\n", request.body->size());
  text += "\r\n";
  if (request.body != nullptr) text.append(*request.body, 0, kBodyWithHead);
  return text;
}

}  // namespace

void PendingCall::Cancel() {
  cancelled_ = true;
  std::shared_ptr<ClientConnection> connection;
  {
    MutexLock lock(mu_);
    connection = connection_.lock();
  }
  if (connection != nullptr) connection->PostCancel(shared_from_this());
}

bool PendingCall::Attach(const std::shared_ptr<ClientConnection>& connection) {
  MutexLock lock(mu_);
  connection_ = connection;
  return !cancelled_;
}

void ClientShared::Assign(const std::shared_ptr<ClientShared>& shared,
                          const std::shared_ptr<PendingCall>& call, bool fresh) {
  std::shared_ptr<ClientConnection> connection;
  {
    MutexLock lock(shared->mu);
    if (!shared->stopping) {
      std::vector<std::shared_ptr<ClientConnection>>& idle = shared->idle[call->origin];
      if (!fresh && !idle.empty()) {
        connection = std::move(idle.back());
        idle.pop_back();
      } else {
        connection = std::make_shared<ClientConnection>(shared, call->origin);
        shared->connections.insert(connection);
      }
    }
  }
  if (connection == nullptr) {
    return call->Fail(Errorf(StatusCode::kCancelled, "the client is about to end"));
  }
  connection->PostStart(call);
}

ClientConnection::ClientConnection(std::shared_ptr<ClientShared> shared, Origin origin)
    : shared_(std::move(shared)),
      origin_(std::move(origin)),
      socket_(asio::make_strand(shared_->io)),
      resolver_(socket_.get_executor()),
      timer_(socket_.get_executor()) {}

void ClientConnection::PostStart(std::shared_ptr<PendingCall> call) {
  asio::post(timer_.get_executor(), [self = shared_from_this(), call = std::move(call)]() mutable {
    self->Start(std::move(call));
  });
}

void ClientConnection::PostCancel(std::shared_ptr<const PendingCall> call) {
  asio::post(timer_.get_executor(), [self = shared_from_this(), call = std::move(call)] {
    if (self->call_ != call) return;
    self->Fail(Errorf(StatusCode::kCancelled, "the call was cancelled"));
  });
}

void ClientConnection::PostClose() {
  asio::post(timer_.get_executor(), [self = shared_from_this()] {
    self->Fail(Errorf(StatusCode::kCancelled, "the client is about to end"));
  });
}

void ClientConnection::Start(std::shared_ptr<PendingCall> call) {
  if (state_ == State::kClosed) {  // Its server was faster.
    return ClientShared::Assign(shared_, call, /*fresh=*/true);
  }
  call_ = std::move(call);
  const bool wanted = call_->Attach(shared_from_this());
  if (!wanted) return Fail(Errorf(StatusCode::kCancelled, "the call was cancelled"));
  if (state_ == State::kConnecting) return Connect();
  kept_ = true;
  SendRequest();
}

void ClientConnection::Connect() {
  if (origin_.tls && shared_->tls == nullptr) {
    return Fail(Errorf(StatusCode::kUnavailable, "cannot begin TLS with {}: the client has none",
                       origin_.Authority()));
  }
  SetDeadline(Now() + shared_->options.connect_timeout);
  error_code not_an_address;
  const asio::ip::address address = asio::ip::make_address(origin_.host, not_an_address);
  if (!not_an_address) {
    return socket_.async_connect(
        tcp::endpoint(address, origin_.port),
        [self = shared_from_this()](const error_code& failed) { self->OnConnected(failed); });
  }
  try {
    resolver_.async_resolve(
        origin_.host, std::to_string(origin_.port), tcp::resolver::numeric_service,
        [self = shared_from_this()](const error_code& ec,
                                    const tcp::resolver::results_type& found) {
          if (self->state_ != State::kConnecting) return;
          if (ec) return self->OnConnected(ec);
          asio::async_connect(self->socket_, found,
                              [self](const error_code& failed, const tcp::endpoint&) {
                                self->OnConnected(failed);
                              });
        });
  } catch (const boost::system::system_error& error) {
    // The first name starts a thread of Boost's, which throws if there is no room for one.
    OnConnected(error.code());
  }
}

void ClientConnection::OnConnected(const error_code& ec) {
  if (state_ != State::kConnecting) return;
  if (ec) {
    return Fail(Errorf(StatusCode::kUnavailable, "cannot connect to {}: {}", origin_.Authority(),
                       ec.message()));
  }
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  transport_ = origin_.tls ? MakeTlsClientTransport(std::move(socket_), shared_->tls, origin_.host)
                           : MakePlainTransport(std::move(socket_));
  transport_->Handshake([self = shared_from_this()](const error_code& failed) {
    if (self->state_ != State::kConnecting) return;
    if (failed) {
      return self->Fail(Errorf(StatusCode::kUnavailable, "cannot begin TLS with {}: {}",
                               self->origin_.Authority(), failed.message()));
    }
    self->SendRequest();
    self->Read();
  });
}

void ClientConnection::SendRequest() {
  state_ = State::kBusy;
  head_passed_ = answered_ = false;
  parser_ = std::make_unique<ResponseParser>(shared_->options.max_head_bytes,
                                             call_->request.max_body_bytes);
  out_ = Render(origin_, call_->request);
  body_at_ = kBodyWithHead;
  body_ = call_->request.body;
  if (body_ != nullptr && body_->size() <= body_at_) body_.reset();
  written_ = 0;
  writing_ = true;
  SetDeadline(Now() + call_->request.silence);
  WriteSome();
}

asio::const_buffer ClientConnection::Unsent() const {
  if (written_ < out_.size()) return {out_.data() + written_, out_.size() - written_};
  if (body_ == nullptr) return {};
  const size_t at = body_at_ + (written_ - out_.size());
  return {body_->data() + at, body_->size() - at};
}

void ClientConnection::WriteSome() {
  transport_->Write(Unsent(), [self = shared_from_this()](const error_code& ec, size_t bytes) {
    if (self->state_ != State::kBusy) return;
    // A server may answer before it has read all: its answer counts.
    if (ec) {
      self->out_ = std::string();
      self->body_.reset();
      return;
    }
    self->written_ += bytes;
    self->SetDeadline(Now() + self->call_->request.silence);
    if (self->Unsent().size() > 0) return self->WriteSome();
    self->writing_ = false;
    self->out_ = std::string();
    self->body_.reset();
  });
}

void ClientConnection::Read() {
  if (state_ == State::kClosed) return;
  if (read_buffer_.empty()) read_buffer_ = std::string(kLeastReadBytes, '\0');
  transport_->Read(
      asio::buffer(read_buffer_),
      [self = shared_from_this()](const error_code& ec, size_t n) { self->OnRead(ec, n); });
}

void ClientConnection::OnRead(const error_code& ec, size_t bytes) {
  if (state_ == State::kClosed) return;
  if (state_ == State::kIdle) return Close();  // It ended, or says what nobody asked for.
  if (ec) {
    if (SendAgain()) return;
    parser_->FeedEnd();
    if (parser_->state() == ResponseParser::State::kDone) return PassOn();
    return Fail(Errorf(StatusCode::kUnavailable, "{}: {}", origin_.Authority(),
                       answered_ ? "the connection ended in the middle of the answer"
                                 : "the connection ended before the answer"));
  }
  answered_ = true;
  // It is not sent again, and an answer may take long.
  call_->request.body.reset();
  call_->request.headers = {};
  SetDeadline(Now() + call_->request.silence);
  in_.append(read_buffer_, 0, bytes);
  if (bytes == read_buffer_.size() && bytes < kMostReadBytes) {
    read_buffer_ = std::string(bytes * 2, '\0');
  }
  Parse();
  // Also when idle.
  Read();
}

void ClientConnection::Parse() {
  const size_t used = parser_->Feed(in_);
  if (used == in_.size()) {
    in_.clear();
  } else {
    in_.erase(0, used);
  }
  PassOn();
}

void ClientConnection::PassOn() {
  const ResponseParser::State state = parser_->state();
  if (state == ResponseParser::State::kFailed) {
    return Fail(Errorf(StatusCode::kInternal, "the answer of {} cannot be used: {}",
                       origin_.Authority(), parser_->error()));
  }
  if (state == ResponseParser::State::kHead) return;
  if (!std::exchange(head_passed_, true)) call_->observer().OnHead(parser_->TakeHead());
  const std::string body = parser_->TakeBody();
  if (!body.empty() && !call_->observer().OnBody(body)) {
    call_.reset();
    return Close();
  }
  if (state == ResponseParser::State::kDone) Finish();
}

void ClientConnection::Finish() {
  const bool keep = parser_->keep_alive() && !writing_ && in_.empty() && !call_->cancelled();
  parser_.reset();
  const auto call = std::exchange(call_, nullptr);
  // First, so that what the observer sends next finds this connection.
  keep ? KeepIdle() : Close();
  call->End();
}

void ClientConnection::KeepIdle() {
  if (read_buffer_.size() > kLeastReadBytes) in_ = std::string();
  state_ = State::kIdle;
  SetDeadline(Now() + shared_->options.idle_timeout);
  MutexLock lock(shared_->mu);
  std::vector<std::shared_ptr<ClientConnection>>& idle = shared_->idle[origin_];
  idle.push_back(shared_from_this());
  if (shared_->stopping || idle.size() > shared_->options.max_idle) {
    idle.front()->PostClose();
    idle.erase(idle.begin());
  }
}

bool ClientConnection::SendAgain() {
  if (!kept_ || answered_ || call_->sent_again || call_->cancelled()) return false;
  call_->sent_again = true;
  const auto call = std::exchange(call_, nullptr);
  Close();
  ClientShared::Assign(shared_, call, /*fresh=*/true);
  return true;
}

void ClientConnection::Fail(const Status& status) {
  const auto call = std::exchange(call_, nullptr);
  const bool connecting = state_ == State::kConnecting;
  Close();
  if (call == nullptr) return;
  if (connecting && status.code() == StatusCode::kUnavailable) return call->FailUnreached(status);
  call->Fail(status);
}

void ClientConnection::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  const auto self = shared_from_this();
  error_code ignored;
  resolver_.cancel();
  if (transport_ != nullptr) {
    transport_->Close();
  } else {
    socket_.close(ignored);
  }
  timer_.cancel();
  MutexLock lock(shared_->mu);
  const auto idle = shared_->idle.find(origin_);
  if (idle != shared_->idle.end()) std::erase(idle->second, self);
  shared_->connections.erase(self);
  shared_->changed.NotifyAll();
}

void ClientConnection::SetDeadline(TimePoint deadline) {
  deadline_ = deadline;
  // A timer that runs out too early costs less than one that is set for each piece.
  if (deadline_ < armed_) ArmTimer();
}

void ClientConnection::ArmTimer() {
  armed_ = deadline_;
  timer_.expires_at(armed_);
  timer_.async_wait([self = shared_from_this()](const error_code& ec) {
    if (!ec) self->OnTimer();
  });
}

void ClientConnection::OnTimer() {
  if (state_ == State::kClosed) return;
  if (Now() < deadline_) return ArmTimer();
  armed_ = deadline_ = TimePoint::max();
  switch (state_) {
    case State::kConnecting:
      return Fail(Errorf(StatusCode::kUnavailable, "cannot connect to {} within {:.3g}s",
                         origin_.Authority(), Seconds(shared_->options.connect_timeout)));
    case State::kBusy:
      return Fail(Errorf(StatusCode::kDeadlineExceeded, "{} said nothing for {:.3g}s",
                         origin_.Authority(), Seconds(call_->request.silence)));
    case State::kIdle:
    case State::kClosed:
      return Close();
  }
}

}  // namespace cairn::http
