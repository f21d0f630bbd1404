#pragma once
// Decodes one HTTP/1 answer from bytes as they come. No sockets, no threads: what reads foreign
// bytes is a class that tests and the fuzzer can feed.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/http/client.h"

namespace cairn::http {

// Not thread-safe.
class ResponseParser {
 public:
  enum class State {
    kHead,    // The head is not complete.
    kBody,    // The head is; the body is not.
    kDone,    // All is there.
    kFailed,  // error() says why. The connection cannot be used any more.
  };
  static constexpr size_t kMaxHeaders = 128;

  // A longer head or body fails. `max_body_bytes` 0: no limit.
  ResponseParser(uint32_t max_head_bytes, uint64_t max_body_bytes);
  ~ResponseParser();
  ResponseParser(const ResponseParser&) = delete;
  ResponseParser& operator=(const ResponseParser&) = delete;

  // Returns how many of the bytes it used. The caller gives the others again, with what follows
  // them. Bytes after the end of the answer are never used. Answers 1xx, which only announce, are
  // skipped.
  size_t Feed(std::string_view bytes);
  // Nothing follows: the connection has ended. That is the end of a body that says no length.
  void FeedEnd();

  State state() const;
  const std::string& error() const;
  // Once the head is complete. After that the parser has none.
  ResponseHead TakeHead();
  bool keep_alive() const;
  // The part of the body that came since the last call.
  std::string TakeBody();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::http
