#include "common/http/request_parser.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <utility>

#include "common/http/origin_form.h"

namespace cairn::http {
namespace {

namespace beast = boost::beast;
using boost::system::error_code;
using BeastView = beast::string_view;
// The error code of Beast that callbacks of ours return when they refuse something: the text is
// ours.
using Refusal = beast::http::error;

constexpr size_t kMaxLineBreaks = 16;

std::string_view View(BeastView text) { return {text.data(), text.size()}; }

}  // namespace

class RequestParser::Impl final : public beast::http::basic_parser<true> {
 public:
  Impl(uint32_t max_head_bytes, uint64_t max_body_bytes, std::shared_ptr<FairBudget> bodies)
      : max_head_(max_head_bytes), max_body_(max_body_bytes) {
    request.body = ChargedString(ByteShare(std::move(bodies)));
    header_limit(max_head_bytes);
    body_limit(max_body_bytes);
    eager(true);
  }

  size_t Feed(std::string_view bytes);
  Request TakeRequest() { return std::move(request); }

  State state = State::kHead;
  int error = 0;
  std::string error_text;
  bool expects_continue = false;
  int version = 11;
  bool begun = false;      // The request line has.
  size_t line_breaks = 0;  // Before it.
  Request request;

 private:
  void on_request_impl(beast::http::verb, BeastView method, BeastView target, int http_version,
                       error_code& ec) override;
  void on_response_impl(int, BeastView, int, error_code&) override {}
  void on_field_impl(beast::http::field field, BeastView name, BeastView value,
                     error_code& ec) override;
  void on_header_impl(error_code& ec) override;
  void on_body_init_impl(const boost::optional<uint64_t>& length, error_code& ec) override {
    ec = {};
    // A client that only declares a length gets no memory for it.
    request.body.Expect(length.value_or(0));
  }
  size_t on_body_impl(BeastView body, error_code& ec) override {
    ec = {};
    if (const Status room = request.body.Append(View(body)); !room.ok()) {
      Refuse(503, "body: " + Message(room) + "; try again later", ec);
    }
    return body.size();
  }
  void on_chunk_header_impl(uint64_t, BeastView, error_code& ec) override { ec = {}; }
  size_t on_chunk_body_impl(uint64_t, BeastView body, error_code& ec) override {
    return on_body_impl(body, ec);
  }
  void on_finish_impl(error_code& ec) override {
    ec = {};
    state = State::kDone;
  }
  void Refuse(int code, std::string text, error_code& ec) {
    error = code;
    error_text = std::move(text);
    ec = Refusal::bad_value;
  }
  void Fail(const error_code& ec);

  const size_t max_head_;
  const uint64_t max_body_;
};

size_t RequestParser::Impl::Feed(std::string_view bytes) {
  size_t used = 0;
  // Some clients send a line break after a body, which is before the next request then (RFC 9112,
  // 2.2).
  while (!begun && used < bytes.size() && (bytes[used] == '\r' || bytes[used] == '\n')) {
    if (++line_breaks > kMaxLineBreaks) {
      error_code ec;
      Refuse(400, "expected a request line", ec);
      Fail(ec);
      return used;
    }
    ++used;
  }
  if (used == bytes.size()) return used;
  begun = true;
  while (state == State::kHead || state == State::kBody) {
    error_code ec;
    const size_t n = put(boost::asio::const_buffer(bytes.data() + used, bytes.size() - used), ec);
    used += n;
    if (ec == Refusal::need_more) {
      // The line before a chunk, and what follows the last chunk, have to lie in one piece, and
      // Beast has no bound for them.
      if (bytes.size() - used > max_head_) {
        ec = {};
        Refuse(400, "expected shorter lines between the chunks of the body", ec);
        Fail(ec);
      }
      break;
    }
    if (ec) {
      Fail(ec);
      break;
    }
    if (n == 0 || used == bytes.size()) break;
  }
  return used;
}

void RequestParser::Impl::on_request_impl(beast::http::verb, BeastView method, BeastView target,
                                          int http_version, error_code& ec) {
  ec = {};
  version = http_version;
  request.method = View(method);
  const std::string_view whole = OriginForm(View(target));
  const size_t question = whole.find('?');
  request.path = whole.substr(0, question);
  if (request.path.empty()) request.path = "/";  // "http://host?query"
  if (question != std::string_view::npos) request.query = whole.substr(question + 1);
  if (version != 10 && version != 11) Refuse(505, "expected HTTP/1.0 or HTTP/1.1", ec);
}

void RequestParser::Impl::on_field_impl(beast::http::field field, BeastView name, BeastView value,
                                        error_code& ec) {
  ec = {};
  // The lines after the last chunk look like headers. Nobody checks it, so nobody may see it.
  if (state != State::kHead) return;
  if (request.headers.size() >= kMaxHeaders) return Refuse(431, "too many headers", ec);
  if (field == beast::http::field::transfer_encoding && !beast::iequals(value, "chunked")) {
    return Refuse(501, "header 'Transfer-Encoding': expected chunked or nothing", ec);
  }
  if (field == beast::http::field::expect && beast::iequals(value, "100-continue")) {
    expects_continue = true;
  }
  request.headers.push_back({std::string(View(name)), std::string(View(value))});
}

void RequestParser::Impl::on_header_impl(error_code& ec) {
  ec = {};
  state = State::kBody;
}

void RequestParser::Impl::Fail(const error_code& ec) {
  state = State::kFailed;
  if (error != 0) return;
  if (ec == Refusal::header_limit) {
    error = 431;
    error_text = "the request line and the headers are too long, expected at most " +
                 std::to_string(max_head_) + " bytes";
  } else if (ec == Refusal::body_limit) {
    error = 413;
    error_text = "the body is too large, expected at most " + std::to_string(max_body_) + " bytes";
  } else if (ec == Refusal::bad_version) {
    error = 505;
    error_text = "expected HTTP/1.0 or HTTP/1.1";
  } else {
    error = 400;
    error_text = "the request is not HTTP/1.1: " + ec.message();
  }
}

RequestParser::RequestParser(uint32_t max_head_bytes, uint64_t max_body_bytes,
                             std::shared_ptr<FairBudget> bodies)
    : impl_(std::make_unique<Impl>(max_head_bytes, max_body_bytes, std::move(bodies))) {}
RequestParser::~RequestParser() = default;

size_t RequestParser::Feed(std::string_view bytes) { return impl_->Feed(bytes); }
RequestParser::State RequestParser::state() const { return impl_->state; }
int RequestParser::error() const { return impl_->error; }
const std::string& RequestParser::error_text() const { return impl_->error_text; }
bool RequestParser::keep_alive() const { return impl_->keep_alive(); }
bool RequestParser::is_http_1_1() const { return impl_->version >= 11; }
bool RequestParser::expects_continue() const { return impl_->expects_continue; }
uint64_t RequestParser::body_bytes() const { return impl_->request.body.size(); }
Request RequestParser::Take() { return impl_->TakeRequest(); }

}  // namespace cairn::http
