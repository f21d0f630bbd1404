#pragma once
// Cuts a stream of server-sent events into whole events, as bytes come. The events stay as they
// are.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn::router {

// Not thread-safe.
class EventDecoder {
 public:
  // An event that is longer fails.
  explicit EventDecoder(size_t max_event_bytes) : max_event_bytes_(max_event_bytes) {}

  struct Events {
    std::string bytes = {};  // Whole events, with the empty lines that end them.
    uint32_t tokens = 0;     // Events with data that are neither the end nor the usage alone.
  };
  // Returns the events that are complete now.
  Events Feed(std::string_view bytes);
  // The stream has ended: what is left, without an empty line behind it.
  Events Rest();

  bool failed() const { return failed_; }
  // "data: [DONE]" has come.
  bool done() const { return done_; }
  // The data of the last event that has the field "usage" with an object. Empty: none came.
  const std::string& usage() const { return usage_; }

 private:
  void ReadEvent(std::string_view event, Events* events);

  const size_t max_event_bytes_;
  std::string pending_;    // The beginning of the event that is not complete.
  size_t line_begin_ = 0;  // In pending_: of the line that is not complete.
  size_t looked_ = 0;      // In pending_: before it no line ends but those that are known.
  bool after_cr_ = false;  // The last byte was a \r that ended a line.
  bool failed_ = false;
  bool done_ = false;
  std::string usage_;
};

}  // namespace cairn::router
