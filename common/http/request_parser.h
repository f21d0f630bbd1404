#pragma once
// Decodes one HTTP/1 request from bytes as they come. No sockets, no threads: what reads strangers'
// bytes is a class that tests and the fuzzer can feed.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/http/message.h"
#include "common/memory/fair_budget.h"

namespace cairn::http {

// Not thread-safe.
class RequestParser {
 public:
  enum class State {
    kHead,    // The head is not complete.
    kBody,    // The head is; the body is not.
    kDone,    // Take() has the request.
    kFailed,  // error() and error_text() say why. The connection cannot be used any more.
  };
  static constexpr size_t kMaxHeaders = 128;

  // A longer head or body fails with 431 or 413. The body counts in `bodies` from its first byte,
  // for as long as it lives; one for which there is no room fails with 503. nullptr: no bound.
  RequestParser(uint32_t max_head_bytes, uint64_t max_body_bytes,
                std::shared_ptr<FairBudget> bodies = nullptr);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  // Returns how many of the bytes it used. The caller gives the others again, with what follows
  // them. Bytes after the end of the request are never used.
  size_t Feed(std::string_view bytes);

  State state() const;
  int error() const;  // A status code of HTTP.
  const std::string& error_text() const;
  // From the head, once it is complete.
  bool keep_alive() const;
  bool is_http_1_1() const;
  bool expects_continue() const;
  uint64_t body_bytes() const;  // So far.

  // REQUIRES: state() == kDone. Once.
  Request Take();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::http
