#include "services/worker/engine/stop_text.h"

#include <algorithm>
#include <utility>

namespace cairn::worker {

std::string StopText::Add(std::string_view text) {
  if (stops_.empty()) return std::string(text);
  held_ += text;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    stopped_ = true;
    held_.resize(first);
    return std::exchange(held_, {});
  }
  std::string sure = held_.substr(0, held_.size() - Undecided());
  held_.erase(0, sure.size());
  return sure;
}

size_t StopText::Undecided() const {
  size_t most = 0;
  for (const std::string& stop : stops_) {
    for (size_t count = std::min(stop.size() - 1, held_.size()); count > most; --count) {
      if (held_.ends_with(std::string_view(stop).substr(0, count))) most = count;
    }
  }
  return most;
}

std::string StopText::Finish() { return std::exchange(held_, {}); }

}  // namespace cairn::worker
