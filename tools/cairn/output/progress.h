#pragma once
// Progress of long work, on stderr: one line that is redrawn on a terminal, plain lines elsewhere.

#include <cstdio>
#include <string>
#include <string_view>

#include "tools/cairn/output/terminal.h"

namespace cairn::cli {

// Not thread-safe.
class Progress {
 public:
  // `silent`: says nothing at all.
  explicit Progress(bool silent, std::FILE* out = stderr);
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // The work that goes on now. Replaces the line before on a terminal; elsewhere it is not shown,
  // since Done says the same with its outcome.
  void Doing(std::string_view text);
  // Something is finished: stays on the screen.
  void Done(std::string_view text);
  // Takes the current line away.
  void Clear();

 private:
  const bool silent_;
  std::FILE* const out_;
  const Terminal terminal_;
  bool open_line_ = false;
};

}  // namespace cairn::cli
