#pragma once
// The head of an HTTP/1 request, as it comes in.

#include <algorithm>
#include <string>
#include <string_view>

#include "common/http/origin_form.h"

namespace cairn::metrics {

// Reads the request line and looks for the end of the headers, which it ignores, as it does a body.
// Not thread-safe.
class HttpRequest {
 public:
  static constexpr size_t kMaxBytes = 8192;  // Limit for request line and headers.

  // True: the request is complete, or cannot be one (`error`). Nothing more is needed then.
  bool Feed(std::string_view bytes) {
    // The end may lie across two pieces.
    const size_t from = head_.size() < 3 ? 0 : head_.size() - 3;
    head_ += bytes.substr(0, kMaxBytes - std::min(kMaxBytes, head_.size()));
    if (head_.find("\r\n\r\n", from) != std::string::npos) {
      Parse();
      return true;
    }
    if (head_.size() < kMaxBytes) return false;
    error_ = 431;
    return true;
  }

  // The HTTP status of a request that cannot be answered. 0: none.
  int error() const { return error_; }
  const std::string& method() const { return method_; }
  const std::string& path() const { return path_; }  // Without the query.

 private:
  void Parse() {
    const std::string_view line = std::string_view(head_).substr(0, head_.find("\r\n"));
    const size_t first = line.find(' '), last = line.rfind(' ');
    if (first == std::string_view::npos || last == first) {
      error_ = 400;
      return;
    }
    // Through a forward proxy comes the whole URL, which means the same (RFC 9112, 3.2.2).
    const std::string_view target = http::OriginForm(line.substr(first + 1, last - first - 1));
    if (!target.starts_with('/')) {
      error_ = 400;
      return;
    }
    const std::string_view version = line.substr(last + 1);
    if (version != "HTTP/1.1" && version != "HTTP/1.0") {
      error_ = version.substr(0, 5) == "HTTP/" ? 505 : 400;
      return;
    }
    method_ = line.substr(0, first);
    path_ = target.substr(0, target.find('?'));
  }

  std::string head_;
  std::string method_, path_;
  int error_ = 0;
};

}  // namespace cairn::metrics
