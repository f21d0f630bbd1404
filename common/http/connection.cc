#include "common/http/connection.h"

#include <boost/asio/post.hpp>
#include <ctime>
#include <utility>

namespace cairn::http {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kReadBytes = 8 << 10;
// While an answer is under way, a read is there to notice that the client goes.
constexpr size_t kWatchBytes = 512;
// Bytes of the next requests that may wait. Then the client has to wait for its answer.
constexpr size_t kMaxWaitingBytes = 16 << 10;
// A larger buffer is not kept for the next piece of a stream.
constexpr size_t kKeptBytes = 2 << 10;
// How long a client may go on sending after its answer: a reset would take the answer from it.
constexpr Duration kLinger = std::chrono::seconds(2);
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

std::string Date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[64];
  const size_t size = std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return {text, size};
}

// The object that the handler holds. When nobody holds it any more, nobody will answer.
class Writer final : public Responder {
 public:
  explicit Writer(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  ~Writer() override { exchange_->Abandon(); }
  void Send(Response response) override { exchange_->Send(std::move(response)); }
  void BeginStream(Response head) override { exchange_->BeginStream(std::move(head)); }
  bool Write(std::string_view data) override { return exchange_->Write(data); }
  void End() override { exchange_->End(); }
  void OnAbort(std::function<void()> aborted) override { exchange_->OnAbort(std::move(aborted)); }
  void Abort() override { exchange_->AbortAnswer(); }

 private:
  const std::shared_ptr<Exchange> exchange_;
};

}  // namespace

Connection::Connection(std::shared_ptr<Shared> shared, std::unique_ptr<Transport> transport)
    : shared_(std::move(shared)),
      transport_(std::move(transport)),
      waiting_since_(Now()),
      timer_(transport_->executor()) {}

void Connection::Start() {
  asio::post(transport_->executor(), [self = shared_from_this()] {
    if (self->state_ != State::kHandshake) return;
    self->SetDeadline(Now() + self->shared_->options.request_timeout);
    self->transport_->Handshake([self](const error_code& ec) {
      if (self->state_ != State::kHandshake) return;
      if (ec) return self->Close();
      self->NextRequest();
    });
  });
}

void Connection::PostFlush() {
  asio::post(transport_->executor(), [self = shared_from_this()] { self->Flush(); });
}

void Connection::PostClose(bool slow_reader) {
  asio::post(transport_->executor(), [self = shared_from_this(), slow_reader] {
    if (slow_reader && self->state_ != State::kClosed) ++self->shared_->slow_readers;
    self->Close();
  });
}

void Connection::PostDrain() {
  asio::post(transport_->executor(), [self = shared_from_this()] {
    const bool between = self->state_ == State::kReading && self->in_.empty() &&
                         self->parser_->state() == RequestParser::State::kHead;
    if (between || self->state_ == State::kHandshake) self->Close();
  });
}

void Connection::NextRequest() {
  if (shared_->draining && in_.empty()) return Close();
  state_ = State::kReading;
  parser_ = std::make_unique<RequestParser>(shared_->options.max_head_bytes,
                                            shared_->options.max_body_bytes, shared_->bodies);
  continue_sent_ = false;
  if (!in_.empty()) return Parse();
  Read();
}

void Connection::Read() {
  if (reading_ || state_ == State::kClosed) return;
  if (state_ == State::kAnswering && in_.size() > kMaxWaitingBytes) return;
  reading_ = true;
  const size_t bytes = state_ == State::kAnswering ? kWatchBytes : kReadBytes;
  if (read_buffer_.size() != bytes) {
    read_buffer_ = std::string(bytes, '\0');
  }
  transport_->Read(
      asio::buffer(read_buffer_),
      [self = shared_from_this()](const error_code& ec, size_t n) { self->OnRead(ec, n); });
}

void Connection::OnRead(const error_code& ec, size_t bytes) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  // A client that says nothing more may still read why.
  if (state_ == State::kAnswering && refused_) return;
  if (ec) return Close();
  if (state_ == State::kLingering) return Read();
  // The time to send a request begins with its first byte.
  if (state_ == State::kReading && std::exchange(idle_, false)) {
    SetDeadline(Now() + shared_->options.request_timeout);
  }
  in_.append(read_buffer_, 0, bytes);
  if (state_ == State::kReading) return Parse();
  Read();
}

void Connection::Parse() {
  const size_t used = parser_->Feed(in_);
  in_.erase(0, used);
  switch (parser_->state()) {
    case RequestParser::State::kFailed:
      return Refuse(parser_->error(), parser_->error_text());
    case RequestParser::State::kDone:
      return Dispatch();
    case RequestParser::State::kBody:
      if (parser_->expects_continue() && !continue_sent_ && parser_->body_bytes() == 0) {
        continue_sent_ = true;
        writing_ = true;
        out_ = kContinue;
        WriteSome();
      }
      break;
    case RequestParser::State::kHead:
      break;
  }
  Read();
}

void Connection::Dispatch() {
  keep_alive_ = parser_->keep_alive() && shared_->options.keep_alive;
  http_1_1_ = parser_->is_http_1_1();
  Request request = parser_->Take();
  head_only_ = request.method == "HEAD";
  parser_.reset();
  if (in_.empty()) in_ = std::string();
  state_ = State::kAnswering;
  waiting_since_ = TimePoint::max();
  if (!writing_) SetDeadline(TimePoint::max());
  exchange_ = std::make_shared<Exchange>(shared_from_this(), shared_.get());
  shared_->handler->Handle(std::move(request), std::make_shared<Writer>(exchange_));
  Read();
}

void Connection::Refuse(int status, const std::string& message) {
  ++shared_->refused_requests;
  // Before the parser goes, whose text `message` may be.
  Response refusal = shared_->handler->Refuse(status, message);
  keep_alive_ = head_only_ = false;
  http_1_1_ = refused_ = true;
  parser_.reset();
  in_ = std::string();
  state_ = State::kAnswering;
  waiting_since_ = TimePoint::max();
  exchange_ = std::make_shared<Exchange>(shared_from_this(), shared_.get());
  exchange_->Send(std::move(refusal));
}

std::string Connection::RenderHead(const Response& head, bool streamed, size_t length) {
  if (shared_->draining) keep_alive_ = false;
  chunked_ = streamed && http_1_1_;
  if (streamed && !chunked_) keep_alive_ = false;  // Its end is the end of the body.
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\nContent-Type: {}\r\n", head.status,
                                 ReasonOf(head.status), Date(), head.content_type);
  for (const Header& header : head.headers) {
    text += fmt::format("{}: {}\r\n", header.name, header.value);
  }
  if (chunked_) text += "Transfer-Encoding: chunked\r\n";
  if (!streamed) text += fmt::format("Content-Length: {}\r\n", length);
  // HTTP/1.0 needs to hear that the connection stays, HTTP/1.1 that it does not.
  if (!keep_alive_) text += "Connection: close\r\n";
  if (keep_alive_ && !http_1_1_) text += "Connection: keep-alive\r\n";
  return text + "\r\n";
}

void Connection::Flush() {
  if (state_ != State::kAnswering || writing_ || exchange_ == nullptr) return;
  Exchange::Output output = exchange_->Take();
  out_body_ = output.body.size();
  out_complete_ = output.complete;
  if (output.head.has_value()) {
    out_ = RenderHead(*output.head, output.streamed, output.body.size());
  }
  if (!head_only_) {
    if (chunked_ && out_body_ > 0) {
      fmt::format_to(std::back_inserter(out_), "{:x}\r\n", out_body_);
    }
    out_ += output.body;
    if (chunked_ && out_body_ > 0) out_ += "\r\n";
    if (chunked_ && out_complete_) out_ += "0\r\n\r\n";
  }
  if (out_.empty()) {
    exchange_->Written(out_body_);
    if (out_complete_) FinishAnswer();
    return;
  }
  writing_ = true;
  SetDeadline(Now() + shared_->options.write_timeout);
  WriteSome();
}

void Connection::WriteSome() {
  transport_->Write(
      asio::buffer(out_.data() + written_, out_.size() - written_),
      [self = shared_from_this()](const error_code& ec, size_t n) { self->OnWritten(ec, n); });
}

void Connection::OnWritten(const error_code& ec, size_t bytes) {
  if (state_ == State::kClosed) return;
  if (ec) return Close();
  written_ += bytes;
  if (written_ < out_.size()) {
    if (state_ == State::kAnswering) SetDeadline(Now() + shared_->options.write_timeout);
    return WriteSome();
  }
  writing_ = false;
  written_ = 0;
  out_.clear();
  if (out_.capacity() > kKeptBytes) out_ = std::string();
  if (state_ != State::kAnswering) return;  // That was "100 Continue".
  SetDeadline(TimePoint::max());
  if (exchange_ == nullptr) return;
  exchange_->Written(std::exchange(out_body_, 0));
  if (std::exchange(out_complete_, false)) return FinishAnswer();
  Flush();
}

void Connection::FinishAnswer() {
  out_complete_ = false;
  // Destroyed here: it may hold what cancels a call, and its writer may be in that call.
  const std::function<void()> done = std::exchange(exchange_, nullptr)->Finish();
  if (!keep_alive_ || shared_->draining) return Linger();
  chunked_ = head_only_ = false;
  waiting_since_ = Now();
  idle_ = in_.empty();
  SetDeadline(Now() + (idle_ ? shared_->options.idle_timeout : shared_->options.request_timeout));
  // Posted: a client that sends many small requests at once must not make this recursive.
  asio::post(transport_->executor(), [self = shared_from_this()] {
    if (self->state_ == State::kAnswering && self->exchange_ == nullptr) self->NextRequest();
  });
}

void Connection::Linger() {
  state_ = State::kLingering;
  // It is owed nothing more, so it is the first to go when places are needed.
  waiting_since_ = TimePoint::min();
  transport_->EndWriting();
  in_ = std::string();
  SetDeadline(Now() + kLinger);
  Read();
}

void Connection::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  const auto self = shared_from_this();
  transport_->Close();
  timer_.cancel();
  parser_.reset();
  if (exchange_ != nullptr) {
    ++shared_->aborted;
    const std::function<void()> aborted = std::exchange(exchange_, nullptr)->Abort();
    if (aborted) aborted();
  }
  MutexLock lock(shared_->mu);
  shared_->connections.erase(self);
  shared_->changed.NotifyAll();
}

void Connection::SetDeadline(TimePoint deadline) {
  deadline_ = deadline;
  // A timer that runs out too early costs less than one that is set for each piece.
  if (deadline_ < armed_) ArmTimer();
}

void Connection::ArmTimer() {
  armed_ = deadline_;
  if (armed_ == TimePoint::max()) return;
  timer_.expires_at(armed_);
  timer_.async_wait([self = shared_from_this()](const error_code& ec) {
    if (!ec) self->OnTimer();
  });
}

void Connection::OnTimer() {
  if (state_ == State::kClosed) return;
  if (Now() < deadline_) return ArmTimer();
  armed_ = deadline_ = TimePoint::max();
  OnDeadline();
}

void Connection::OnDeadline() {
  switch (state_) {
    case State::kReading:
      if (in_.empty() && parser_->state() == RequestParser::State::kHead) return Close();
      ++shared_->slow_senders;
      return Refuse(408, "the request took too long to arrive");
    case State::kHandshake:
      ++shared_->slow_senders;
      return Close();
    case State::kAnswering:
      if (exchange_ == nullptr) return Close();
      ++shared_->slow_readers;
      return Close();
    case State::kLingering:
    case State::kClosed:
      return Close();
  }
}

}  // namespace cairn::http
