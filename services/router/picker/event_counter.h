#pragma once
// How many server-sent events a body has, seen in pieces: engines send about one for each token.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cairn::router {

// Not thread-safe.
class EventCounter {
 public:
  // The events that began in this piece.
  uint32_t Add(std::string_view piece) {
    constexpr std::string_view kField = "data:";
    uint32_t events = 0;
    for (const char c : piece) {
      if (c == '\n' || c == '\r') {
        matched_ = 0;
      } else if (matched_ < kField.size()) {
        // Past the field's length: a line that is none.
        matched_ = c == kField[matched_] ? matched_ + 1 : kField.size() + 1;
        if (matched_ == kField.size()) ++events;
      }
    }
    return events;
  }

 private:
  size_t matched_ = 0;  // How much of the field's name was matched in the present line.
};

}  // namespace cairn::router
