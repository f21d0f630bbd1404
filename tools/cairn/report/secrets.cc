#include "tools/cairn/report/secrets.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace cairn::cli {
namespace {

constexpr std::array<std::string_view, 13> kSecretWords = {
    "password", "passwd",  "passphrase", "secret",      "secrets",     "token",         "salt",
    "apikey",   "api_key", "api-key",    "credentials", "private_key", "authorization",
};
constexpr std::string_view kPemBegin = "-----BEGIN ", kPemEnd = "-----END ";

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

bool IsNameChar(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
}

size_t Indent(std::string_view line) {
  return std::min(line.find_first_not_of(" \t"), line.size());
}

// A line of the body of a PEM block, or of the headers of an old one.
bool IsInsidePem(std::string_view line) {
  line.remove_prefix(Indent(line));
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
  if (line.starts_with("Proc-Type:") || line.starts_with("DEK-Info:")) return true;
  return std::all_of(line.begin(), line.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '+' || c == '/' || c == '=';
  });
}

// "scheme://user:password@host".
void LeaveOutUsers(std::string* line) {
  constexpr std::string_view kMark = "://";
  for (size_t at = line->find(kMark); at != std::string::npos; at = line->find(kMark, at)) {
    at += kMark.size();
    const size_t end = std::min(line->find_first_of(" \t\"'<>/?#,", at), line->size());
    const size_t sign = line->substr(at, end - at).rfind('@');
    if (sign != std::string::npos) line->replace(at, sign, kLeftOut);
  }
}

void LeaveOutSchemes(std::string* line) {
  for (const std::string_view scheme : {"bearer ", "basic "}) {
    size_t at = 0;
    while ((at = Lower(*line).find(scheme, at)) != std::string::npos) {
      at += scheme.size();
      const size_t end = std::min(line->find_first_of(" \t\"'", at), line->size());
      line->replace(at, end - at, kLeftOut);
    }
  }
}

// Where the value of the first secret's key at or after `from` begins; npos: there is none.
size_t SecretValue(const std::string& line, const std::string& lower, size_t from) {
  for (size_t at = from; at < line.size(); ++at) {
    for (const std::string_view word : kSecretWords) {
      if (lower.compare(at, word.size(), word) != 0) continue;
      size_t end = at + word.size();
      if (end < line.size() && IsNameChar(line[end])) continue;  // "token" of "tokens".
      // A backslash: the key is JSON within JSON.
      while (end < line.size() && (line[end] == '"' || line[end] == '\'' || line[end] == '\\')) {
        ++end;
      }
      end = std::min(line.find_first_not_of(' ', end), line.size());
      if (end == line.size() || (line[end] != ':' && line[end] != '=')) continue;
      return std::min(line.find_first_not_of(' ', end + 1), line.size());
    }
  }
  return std::string::npos;
}

// The end of the value that begins at `from`. Without quotes it may have spaces in YAML.
size_t ValueEnd(const std::string& line, size_t from) {
  const char quote = line[from];
  if (quote != '"' && quote != '\'') {
    const bool yaml = line[line.find_last_not_of(' ', from - 1)] == ':';
    return yaml ? line.size() : std::min(line.find_first_of(" \t", from), line.size());
  }
  size_t end = from + 1;
  while (end < line.size() && line[end] != quote) end += line[end] == '\\' ? 2 : 1;
  return std::min(end + 1, line.size());
}

// Whether the value goes on in the lines after it, which YAML indents more.
bool LeaveOutValues(std::string* line) {
  bool goes_on = false;
  for (size_t at = 0; (at = SecretValue(*line, Lower(*line), at)) != std::string::npos;) {
    if (at == line->size()) break;
    if (line->compare(at, 2, "\"\"") == 0 || line->compare(at, 2, "''") == 0) continue;
    goes_on = (*line)[at] == '|' || (*line)[at] == '>';
    line->replace(at, ValueEnd(*line, at) - at, kLeftOut);
  }
  return goes_on;
}

// Within a line. Whether a block begins that goes on in the next one.
bool LeaveOutPem(std::string* line) {
  for (size_t begin = 0; (begin = line->find(kPemBegin, begin)) != std::string::npos;) {
    const size_t end = line->find(kPemEnd, begin);
    if (end == std::string::npos) {
      line->replace(begin, line->size() - begin, kLeftOut);
      return true;
    }
    const size_t dashes = line->find("-----", end + kPemEnd.size());
    const size_t after = dashes == std::string::npos ? line->size() : dashes + 5;
    line->replace(begin, after - begin, kLeftOut);
  }
  return false;
}

}  // namespace

std::string WithoutSecrets(std::string_view text) {
  std::string out;
  bool in_pem = false;
  bool in_value = false;
  size_t indent = 0;  // The indent of its key.
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line(text.substr(begin, end - begin));
    begin = end + 1;
    if (in_value && (Indent(line) > indent || Indent(line) == line.size())) continue;
    in_value = false;
    if (in_pem && line.find(kPemEnd) != std::string::npos) {
      in_pem = false;
      continue;
    }
    if (in_pem && IsInsidePem(line)) continue;
    in_pem = LeaveOutPem(&line);
    LeaveOutUsers(&line);
    LeaveOutSchemes(&line);
    indent = Indent(line);
    in_value = LeaveOutValues(&line);
    out += line;
    if (end < text.size()) out += '\n';
  }
  return out;
}

}  // namespace cairn::cli
