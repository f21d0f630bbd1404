// Any bytes as the head of a request to the admin port: an error of HTTP, or a method and a path
// that were in it, however the bytes were cut on their way.
//
// First byte: the bytes come in pieces of that size. The rest is what comes.

#include "common/metrics/http_request.h"
#include "tests/fuzz/input.h"

namespace {

using cairn::fuzz::Expect;
using cairn::metrics::HttpRequest;

// False: more is needed.
bool FeedAll(HttpRequest* request, std::string_view bytes, size_t piece) {
  for (size_t at = 0; at < bytes.size(); at += piece) {
    if (request->Feed(bytes.substr(at, piece))) return true;
  }
  return false;
}

}  // namespace

CAIRN_FUZZ_ENTRY(http_request)(const uint8_t* data, size_t size) {
  cairn::fuzz::Input input(data, size);
  const size_t piece = 1u + input.U8();
  const std::string_view bytes = input.Rest();
  HttpRequest whole, cut;
  const bool complete = FeedAll(&whole, bytes, bytes.size() + 1);
  Expect(FeedAll(&cut, bytes, piece) == complete);
  Expect(complete == (bytes.find("\r\n\r\n") != std::string_view::npos ||
                      bytes.size() >= HttpRequest::kMaxBytes));
  if (!complete) return 0;
  Expect(cut.error() == whole.error());
  Expect(whole.error() == 0 || (whole.error() >= 400 && whole.error() <= 599));
  if (whole.error() != 0) return 0;
  Expect(cut.method() == whole.method() && cut.path() == whole.path());
  Expect(bytes.starts_with(whole.method() + " " + whole.path()));
  Expect(whole.path().starts_with('/') && whole.path().find('?') == std::string::npos);
  return 0;
}
