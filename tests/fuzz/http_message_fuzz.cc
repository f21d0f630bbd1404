// Any bytes as requests to the HTTP server: the same requests however the bytes were cut on their
// way, within the bounds, and none of whose parts has a line end.
//
// First byte: the bytes come in pieces of that size. The rest is what comes.

#include <algorithm>

#include "common/http/request_parser.h"
#include "tests/fuzz/input.h"

namespace {

using cairn::fuzz::Expect;
using cairn::http::Request;
using cairn::http::RequestParser;
using State = RequestParser::State;

constexpr uint32_t kMaxHead = 512;
constexpr uint64_t kMaxBody = 256;

// Feeds until the end or the first request. Returns what is left of the bytes.
std::string FeedAll(RequestParser& parser, std::string_view bytes, size_t piece) {
  std::string waiting;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    waiting += bytes.substr(at, piece);
    const size_t used = parser.Feed(waiting);
    Expect(used <= waiting.size());
    waiting.erase(0, used);
    if (parser.state() == State::kDone || parser.state() == State::kFailed) {
      return waiting + std::string(bytes.substr(std::min(bytes.size(), at + piece)));
    }
    // The waiting bytes are bounded, too.
    Expect(waiting.size() <= 2 * kMaxHead + piece);
  }
  return waiting;
}

}  // namespace

CAIRN_FUZZ_ENTRY(http_message)(const uint8_t* data, size_t size) {
  cairn::fuzz::Input input(data, size);
  const size_t piece = 1u + input.U8();
  const std::string bytes(input.Rest());
  RequestParser whole(kMaxHead, kMaxBody), cut(kMaxHead, kMaxBody);
  const std::string rest = FeedAll(whole, bytes, bytes.size() + 1);
  const std::string cut_rest = FeedAll(cut, bytes, piece);
  if (whole.state() == State::kFailed) {
    Expect(whole.error() >= 400 && whole.error() <= 599 && !whole.error_text().empty());
  }
  if (whole.state() != State::kDone) return 0;
  if (cut.state() == State::kFailed) {
    // Lines between chunks are bounded only while they are not complete.
    Expect(cut.error_text().starts_with("expected shorter lines"));
    return 0;
  }
  Expect(cut.state() == State::kDone);
  Expect(rest == cut_rest);
  const Request a = whole.Take(), b = cut.Take();
  Expect(a.method == b.method && a.path == b.path && a.query == b.query &&
         a.body.text() == b.body.text());
  Expect(a.body.size() <= kMaxBody && a.headers.size() == b.headers.size());
  Expect(a.headers.size() <= RequestParser::kMaxHeaders);
  for (const auto& header : a.headers) {
    Expect(header.name.find_first_of("\r\n: ") == std::string::npos && !header.name.empty());
    Expect(header.value.find_first_of("\r\n") == std::string::npos);
  }
  return 0;
}
