#pragma once
// The parts of `cairn report`, and the text that they become.

#include <string>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::cli {

struct ReportPart {
  std::string title;
  Result<std::string> text;  // Or why it is missing.
};

// A report is read by people and attached to a bug report: a part has a bound.
inline constexpr size_t kMostOfFile = 1 << 20;

// A whole file of settings, at most kMostOfFile. NOT_FOUND or INVALID_ARGUMENT names the file.
Result<std::string> ReadWhole(const std::string& path);
// The last kMostOfFile of a log, from the beginning of a line on, after a line that says so if
// there was more. "-": standard input.
Result<std::string> ReadTail(const std::string& path);

// A list of the parts, and then each of them, without secrets (secrets.h). `tool`: version and
// revision of `cairn`. `time`: when it was made.
std::string ReportText(const std::string& tool, const std::string& time,
                       const std::vector<ReportPart>& parts);

// Whether WriteReport can make the file. Errors as its.
Status CheckReportPath(const std::string& path);
// Makes the file, which only its owner can read. ALREADY_EXISTS: there is one. INTERNAL: it cannot
// be written; then there is none.
Status WriteReport(const std::string& path, const std::string& text);

}  // namespace cairn::cli
