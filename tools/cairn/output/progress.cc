#include "tools/cairn/output/progress.h"

namespace cairn::cli {

Progress::Progress(bool silent, std::FILE* out)
    : silent_(silent), out_(out), terminal_(Terminal::Detect(out)) {}

void Progress::Doing(std::string_view text) {
  if (silent_ || !terminal_.tty) return;
  Clear();
  std::string line(text);
  // A wrapped line could not be taken back.
  const auto room = static_cast<size_t>(terminal_.columns > 4 ? terminal_.columns - 4 : 0);
  if (line.size() > room) line.resize(room);
  std::fprintf(out_, "%s", terminal_.Paint(line, Style::kDim).c_str());
  std::fflush(out_);
  open_line_ = true;
}

void Progress::Done(std::string_view text) {
  if (silent_) return;
  Clear();
  std::fprintf(out_, "%.*s\n", static_cast<int>(text.size()), text.data());
  std::fflush(out_);
}

void Progress::Clear() {
  if (!open_line_) return;
  std::fprintf(out_, "\r\x1b[K");
  std::fflush(out_);
  open_line_ = false;
}

}  // namespace cairn::cli
