#pragma once
// The abilities of the terminal, and text with the colours it can show.

#include <cstdio>
#include <string>
#include <string_view>

namespace cairn::cli {

enum class Style { kPlain, kBold, kDim, kGreen, kYellow, kRed };

// Immutable.
struct Terminal {
  bool colors = false;  // ANSI escapes.
  bool unicode = true;  // Box drawing and bars; else ASCII.
  bool tty = false;
  int columns = 100;

  // Looks at the stream, NO_COLOR, TERM, the locale variables and the window size.
  static Terminal Detect(std::FILE* stream);

  std::string Paint(std::string_view text, Style style) const;
};

// Columns that UTF-8 text takes, each character counted as one and ANSI colour escapes as none.
int DisplayWidth(std::string_view text);

}  // namespace cairn::cli
