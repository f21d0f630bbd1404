#include "common/http/response_parser.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <limits>
#include <utility>

namespace cairn::http {
namespace {

namespace beast = boost::beast;
using boost::system::error_code;
using BeastView = beast::string_view;
using Refusal = beast::http::error;

constexpr int kMaxAnnouncements = 8;

}  // namespace

class ResponseParser::Impl {
 public:
  Impl(uint32_t max_head_bytes, uint64_t max_body_bytes)
      : max_head(max_head_bytes), max_body(max_body_bytes) {
    Begin();
  }

  size_t Feed(std::string_view bytes);
  void FeedEnd() {
    if (state == State::kDone || state == State::kFailed) return;
    error_code ec = Refusal::partial_message;
    if (state == State::kBody) message->put_eof(ec);
    if (ec) Fail(ec);
  }

  // One answer: an announcement, or the one.
  class Message final : public beast::http::basic_parser<false> {
   public:
    explicit Message(Impl* impl) : impl_(impl) {
      header_limit(impl->max_head);
      // Beast (1.74) forgets that a Content-Length is over its limit if the body comes with the
      // head: the limit is kept here.
      body_limit(std::numeric_limits<uint64_t>::max());
      eager(true);
    }

   private:
    void on_request_impl(beast::http::verb, BeastView, BeastView, int, error_code&) override {}
    void on_response_impl(int status, BeastView, int version, error_code& ec) override {
      ec = {};
      impl_->head.status = status;
      if (version != 10 && version != 11) impl_->Refuse("expected HTTP/1.0 or HTTP/1.1", ec);
      // An upgrade was never asked for.
      if (status < 100 || status > 599 || status == 101) impl_->Refuse("its status is wrong", ec);
    }
    void on_field_impl(beast::http::field field, BeastView name, BeastView value,
                       error_code& ec) override {
      ec = {};
      // The lines after the last chunk look like headers. Nobody checks it, so nobody may see it.
      if (impl_->state != State::kHead) return;
      if (impl_->head.headers.size() >= kMaxHeaders) return impl_->Refuse("too many headers", ec);
      if (field == beast::http::field::transfer_encoding && !beast::iequals(value, "chunked")) {
        return impl_->Refuse("header 'Transfer-Encoding': expected chunked or nothing", ec);
      }
      impl_->head.headers.push_back({std::string(name), std::string(value)});
    }
    void on_header_impl(error_code& ec) override {
      ec = {};
      impl_->state = State::kBody;
    }
    void on_body_init_impl(const boost::optional<uint64_t>&, error_code& ec) override { ec = {}; }
    size_t on_body_impl(BeastView bytes, error_code& ec) override {
      ec = {};
      impl_->body_bytes += bytes.size();
      if (impl_->max_body > 0 && impl_->body_bytes > impl_->max_body) {
        impl_->Refuse(fmt::format("its body has more than {} bytes", impl_->max_body), ec);
        return 0;
      }
      impl_->body.append(bytes.data(), bytes.size());
      return bytes.size();
    }
    void on_chunk_header_impl(uint64_t, BeastView, error_code& ec) override { ec = {}; }
    size_t on_chunk_body_impl(uint64_t, BeastView bytes, error_code& ec) override {
      return on_body_impl(bytes, ec);
    }
    void on_finish_impl(error_code& ec) override {
      ec = {};
      impl_->state = State::kDone;
    }

    Impl* const impl_;
  };

  void Begin() {
    state = State::kHead;
    head = {};
    message = std::make_unique<Message>(this);
  }
  void Refuse(std::string text, error_code& ec) {
    error = std::move(text);
    ec = Refusal::bad_value;
  }
  void Fail(const error_code& ec);

  const uint32_t max_head;
  const uint64_t max_body;
  State state = State::kHead;
  std::string error;
  ResponseHead head;
  std::string body;
  uint64_t body_bytes = 0;
  int announcements = 0;
  std::unique_ptr<Message> message;
};

void ResponseParser::Impl::Fail(const error_code& ec) {
  state = State::kFailed;
  if (!error.empty()) return;
  if (ec == Refusal::header_limit) {
    error = fmt::format("its head has more than {} bytes", max_head);
  } else if (ec == Refusal::partial_message) {
    error = "the connection ended in the middle of it";
  } else {
    error = "it is not HTTP/1.1: " + ec.message();
  }
}

size_t ResponseParser::Impl::Feed(std::string_view bytes) {
  size_t used = 0;
  while (state == State::kHead || state == State::kBody) {
    error_code ec;
    const size_t n =
        message->put(boost::asio::const_buffer(bytes.data() + used, bytes.size() - used), ec);
    used += n;
    if (ec == Refusal::need_more) {
      // As in RequestParser: Beast has no bound for lines between chunks.
      if (bytes.size() - used > max_head) {
        ec = {};
        Refuse("the lines between the chunks of its body are too long", ec);
        Fail(ec);
      }
      break;
    }
    if (ec) {
      Fail(ec);
      break;
    }
    if (state == State::kDone && head.status < 200) {
      if (++announcements > kMaxAnnouncements) {
        Refuse("too many answers 1xx", ec);
        Fail(ec);
        break;
      }
      Begin();
    }
    if (n == 0 || used == bytes.size()) break;
  }
  return used;
}

ResponseParser::ResponseParser(uint32_t max_head_bytes, uint64_t max_body_bytes)
    : impl_(std::make_unique<Impl>(max_head_bytes, max_body_bytes)) {}
ResponseParser::~ResponseParser() = default;

size_t ResponseParser::Feed(std::string_view bytes) { return impl_->Feed(bytes); }
void ResponseParser::FeedEnd() { impl_->FeedEnd(); }
ResponseParser::State ResponseParser::state() const { return impl_->state; }
const std::string& ResponseParser::error() const { return impl_->error; }
ResponseHead ResponseParser::TakeHead() { return std::exchange(impl_->head, {}); }
bool ResponseParser::keep_alive() const { return impl_->message->keep_alive(); }
std::string ResponseParser::TakeBody() { return std::exchange(impl_->body, {}); }

}  // namespace cairn::http
