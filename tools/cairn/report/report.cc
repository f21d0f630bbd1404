#include "tools/cairn/report/report.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "tools/cairn/output/units.h"
#include "tools/cairn/report/secrets.h"

namespace cairn::cli {
namespace {

// The last bytes of a stream that may have no end to seek to, and how many there were.
std::pair<std::string, uint64_t> LastOf(std::istream& in) {
  std::string last;
  uint64_t all = 0;
  std::string piece(64 << 10, '\0');
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())) || in.gcount() > 0) {
    const auto count = static_cast<size_t>(in.gcount());
    last.append(piece, 0, count);
    all += count;
    if (last.size() > 2 * kMostOfFile) last.erase(0, last.size() - kMostOfFile);
  }
  if (last.size() > kMostOfFile) last.erase(0, last.size() - kMostOfFile);
  return {std::move(last), all};
}

// Open, and at a place from which kMostOfFile and no less are left, if it is a plain file.
Result<std::ifstream> OpenNearEnd(const std::string& path) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::directory) {
    return InvalidArgument("'{}' is a folder, expected a file", path);
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return Errorf(StatusCode::kNotFound, "cannot read '{}': {}", path, std::strerror(errno));
  }
  if (kind == std::filesystem::file_type::regular) {
    const uint64_t size = std::filesystem::file_size(path, error);
    if (!error && size > kMostOfFile) {
      file.seekg(static_cast<std::streamoff>(size - kMostOfFile - 1));
    }
  }
  return file;
}

// A terminal or an editor would take control characters for commands.
std::string Printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return (byte < ' ' && c != '\n' && c != '\t') || byte == 0x7f;
      },
      '?');
  return text;
}

std::string Extent(const ReportPart& part) {
  if (!part.text.ok()) return "missing: " + Message(part.text.status());
  const std::string& text = *part.text;
  const bool open = !text.empty() && text.back() != '\n';  // The last line counts, too.
  return fmt::format("{} lines", std::count(text.begin(), text.end(), '\n') + (open ? 1 : 0));
}

}  // namespace

Result<std::string> ReadWhole(const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(std::ifstream file, OpenNearEnd(path));
  auto [text, all] = LastOf(file);
  if (all > kMostOfFile) {
    return InvalidArgument("'{}' has more than {}, expected a file of settings", path,
                           HumanBytes(kMostOfFile));
  }
  return text;
}

Result<std::string> ReadTail(const std::string& path) {
  std::pair<std::string, uint64_t> read;
  if (path == "-") {
    read = LastOf(std::cin);
  } else {
    CAIRN_ASSIGN_OR_RETURN(std::ifstream file, OpenNearEnd(path));
    read = LastOf(file);
  }
  auto& [text, all] = read;
  if (all <= kMostOfFile) return text;
  const size_t line = text.find('\n');
  if (line != std::string::npos) text.erase(0, line + 1);
  return fmt::format("[only the last {} of it]\n{}", HumanBytes(kMostOfFile), text);
}

std::string ReportText(const std::string& tool, const std::string& time,
                       const std::vector<ReportPart>& parts) {
  std::string out = fmt::format(
      "Report of {}, {}\n\n"
      "Read it before you pass it on. It names addresses, models, tenants and files. Passwords,\n"
      "tokens, keys and users of URLs are left out where they could be recognised.\n\n",
      tool, time);
  for (const ReportPart& part : parts) out += fmt::format("{}: {}\n", part.title, Extent(part));
  for (const ReportPart& part : parts) {
    if (!part.text.ok()) continue;
    out += fmt::format("\n==== {} ====\n{}", part.title, *part.text);
    if (!out.ends_with('\n')) out += '\n';
  }
  return Printable(WithoutSecrets(out));
}

Status CheckReportPath(const std::string& path) {
  CAIRN_RETURN_IF_ERROR(WriteReport(path, ""));
  unlink(path.c_str());
  return OkStatus();
}

Status WriteReport(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0 && errno == EEXIST) {
    return Errorf(StatusCode::kFailedPrecondition, "--out: '{}' is there already", path);
  }
  if (fd < 0) {
    return Errorf(StatusCode::kInternal, "--out: cannot make '{}': {}", path, std::strerror(errno));
  }
  size_t written = 0;
  int error = 0;
  while (written < text.size() && error == 0) {
    const ssize_t n = write(fd, text.data() + written, text.size() - written);
    if (n > 0) written += static_cast<size_t>(n);
    if (n < 0 && errno != EINTR) error = errno;
  }
  // A full network disk says so here.
  if (close(fd) != 0 && error == 0) error = errno;
  if (error == 0) return OkStatus();
  unlink(path.c_str());
  return Errorf(StatusCode::kInternal, "--out: cannot write '{}': {}", path, std::strerror(error));
}

}  // namespace cairn::cli
