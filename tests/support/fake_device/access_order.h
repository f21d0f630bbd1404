#pragma once
// Finds accesses that no wait orders, with vector clocks: streams, events and the host each know
// the last piece of work of every stream that is before them. So a missing wait is found when the
// work is issued, whatever the timing of the run is.
//
// Line 0 is the host, with all its threads; the others are streams. Not thread-safe.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace cairn::device::fake {

using Line = uint32_t;
inline constexpr Line kHost = 0;
using LineClock = std::vector<uint64_t>;  // By line.

class AccessOrder {
 public:
  Line NewLine() { return next_line_++; }
  // A piece of work of the line begins; what the host knows to have ended is before it.
  void Tick(Line line);
  // The clock of all that the line has done and knows, for an event.
  LineClock Now(Line line) const {
    return clocks_.count(line) == 0 ? LineClock() : clocks_.at(line);
  }
  // The line waits for that.
  void Learn(Line line, const LineClock& clock) { Merge(&clocks_[line], clock); }
  // The access of the line's piece of work that began last. A text that names both pieces: an
  // earlier access to some of the bytes is not before it.
  std::optional<std::string> Access(Line line, const std::string& what, uint64_t begin,
                                    uint64_t bytes, bool writes);
  // The addresses hold something else from now on.
  void Forget(uint64_t begin, uint64_t bytes);

 private:
  struct Use {
    Line line = 0;
    uint64_t tick = 0;
    std::string what;
  };
  // Bytes with one history: who wrote them last, and who read them since, once for each line.
  struct Piece {
    uint64_t end = 0;
    std::optional<Use> write;
    std::vector<Use> reads;
  };

  static void Merge(LineClock* clock, const LineClock& other);
  static uint64_t& At(LineClock* clock, Line line);
  bool IsBefore(const Use& use, Line line);
  void Split(uint64_t at);

  Line next_line_ = kHost + 1;
  std::map<Line, LineClock> clocks_;
  std::map<uint64_t, Piece> pieces_;  // By their beginning; they do not overlap.
};

}  // namespace cairn::device::fake
