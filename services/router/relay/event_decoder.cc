#include "services/router/relay/event_decoder.h"

#include <algorithm>
#include <utility>

#include "services/router/relay/answer_usage.h"

namespace cairn::router {
namespace {

constexpr size_t kMaxUsageBytes = 64 << 10;

}  // namespace

EventDecoder::Events EventDecoder::Feed(std::string_view bytes) {
  Events events;
  if (failed_) return events;
  pending_ += bytes;
  size_t event_begin = 0;
  while (looked_ < pending_.size()) {
    const size_t end = pending_.find_first_of("\r\n", looked_);
    if (end == std::string::npos) {
      looked_ = pending_.size();
      break;
    }
    const bool second_of_crlf = after_cr_ && pending_[end] == '\n' && end == line_begin_;
    const bool empty = end == line_begin_;
    after_cr_ = pending_[end] == '\r';
    looked_ = line_begin_ = end + 1;
    if (second_of_crlf) {
      // The event has ended with the \r already.
      if (event_begin == end) {
        events.bytes += '\n';
        event_begin = looked_;
      }
      continue;
    }
    if (!empty) continue;
    const std::string_view event(pending_.data() + event_begin, looked_ - event_begin);
    ReadEvent(event, &events);
    events.bytes += event;
    event_begin = looked_;
  }
  pending_.erase(0, event_begin);
  looked_ -= event_begin;
  line_begin_ -= event_begin;
  if (pending_.size() > max_event_bytes_) failed_ = true;
  if (pending_.empty() && pending_.capacity() > 4096) pending_ = std::string();
  return events;
}

EventDecoder::Events EventDecoder::Rest() {
  Events events;
  if (failed_) return events;
  if (!pending_.empty()) ReadEvent(pending_, &events);
  events.bytes = std::exchange(pending_, {});
  looked_ = line_begin_ = 0;
  return events;
}

void EventDecoder::ReadEvent(std::string_view event, Events* events) {
  // The first line with data tells all that matters here: these servers send one for each event.
  while (!event.empty()) {
    const size_t end = std::min(event.find_first_of("\r\n"), event.size());
    std::string_view line = event.substr(0, end);
    event.remove_prefix(std::min(end + 1, event.size()));
    if (!line.starts_with("data:")) continue;
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (line == "[DONE]") {
      done_ = true;
      return;
    }
    const bool usage = HasUsage(line);
    if (usage && line.size() <= kMaxUsageBytes) usage_ = line;
    if (!usage || !HasNoChoices(line)) ++events->tokens;
    return;
  }
}

}  // namespace cairn::router
