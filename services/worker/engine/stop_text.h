#pragma once
// Ends an answer at the first of some texts, which is not part of the answer.

#include <span>
#include <string>
#include <string_view>

namespace cairn::worker {

// A stop text may span tokens, so text that could be the beginning of one is held back until the
// next tokens decide. Not thread-safe.
class StopText {
 public:
  // `stops`: UTF-8, none of them empty. They must outlive it.
  explicit StopText(std::span<const std::string> stops) : stops_(stops) {}

  // The text of the next token. Returns what is certainly text of the answer now. Whole characters
  // in give whole characters out. REQUIRES: not stopped().
  std::string Add(std::string_view text);
  // A stop text has come: the answer ended before it.
  bool stopped() const { return stopped_; }
  // The answer ends without a stop text: the text that was held back.
  std::string Finish();

 private:
  // How many bytes at the end of held_ are the beginning of a stop text.
  size_t Undecided() const;

  const std::span<const std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace cairn::worker
