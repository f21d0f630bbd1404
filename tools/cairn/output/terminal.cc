#include "tools/cairn/output/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace cairn::cli {
namespace {

bool LocaleIsUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view v(value);
    return v.find("UTF-8") != v.npos || v.find("utf8") != v.npos || v.find("UTF8") != v.npos;
  }
  // No locale at all is a container or a build machine, whose logs are read as UTF-8.
  return true;
}

const char* Escape(Style style) {
  switch (style) {
    case Style::kBold:
      return "\x1b[1m";
    case Style::kDim:
      return "\x1b[2m";
    case Style::kGreen:
      return "\x1b[32m";
    case Style::kYellow:
      return "\x1b[33m";
    case Style::kRed:
      return "\x1b[31m";
    case Style::kPlain:
      break;
  }
  return "";
}

}  // namespace

Terminal Terminal::Detect(std::FILE* stream) {
  Terminal t;
  const int fd = fileno(stream);
  t.tty = isatty(fd) == 1;
  const char* term = std::getenv("TERM");
  const bool dumb = term != nullptr && std::string_view(term) == "dumb";
  t.colors = t.tty && !dumb && std::getenv("NO_COLOR") == nullptr;
  t.unicode = LocaleIsUtf8();
  winsize size{};
  if (t.tty && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) t.columns = size.ws_col;
  return t;
}

std::string Terminal::Paint(std::string_view text, Style style) const {
  if (!colors || style == Style::kPlain || text.empty()) return std::string(text);
  std::string out = Escape(style);
  out += text;
  out += "\x1b[0m";
  return out;
}

int DisplayWidth(std::string_view text) {
  int width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == 0x1b && i + 1 < text.size() && text[i + 1] == '[') {
      while (i < text.size() && text[i] != 'm') ++i;
      continue;
    }
    if ((c & 0xC0) != 0x80) ++width;  // Not a continuation byte.
  }
  return width;
}

}  // namespace cairn::cli
