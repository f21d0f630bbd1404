#include "tools/cairn/report/secrets.h"

#include <algorithm>
#include <cctype>
#include <optional>

namespace cairn::cli {
namespace {

// The end of a secret's name.
constexpr std::string_view kSecretEnds[] = {
    "password",   "passwd",     "passphrase",  "secret",         "secrets",     "token",
    "salt",       "apikey",     "api_key",     "api-key",        "credential",  "credentials",
    "accesskey",  "access_key", "access-key",  "privatekey",     "private_key", "private-key",
    "secretkey",  "secret_key", "secret-key",  "authorization",  "cookie",      "signing_key",
    "accountkey", "auth_key",   "account_key", "encryption_key",
};
// The same, but only as a word of its own: "bypass" is no secret.
constexpr std::string_view kSecretWords[] = {"pass", "pwd", "pw", "psk", "jwt"};

// Tokens that say by their first letters that they are tokens.
struct TokenForm {
  std::string_view prefix;
  size_t least;  // Characters after it.
};
constexpr TokenForm kTokenForms[] = {
    {"ghp_", 16}, {"gho_", 16},   {"ghu_", 16},        {"ghs_", 16},  {"ghr_", 16},
    {"AKIA", 16}, {"ASIA", 16},   {"github_pat_", 16}, {"hf_", 16},   {"npm_", 16},
    {"sk-", 16},  {"glpat-", 16}, {"dckr_pat_", 16},   {"xoxb-", 8},  {"xoxp-", 8},
    {"eyJ", 16},  {"AIza", 16},   {"nvapi-", 16},      {"ya29.", 16},
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

bool IsSecretName(std::string_view name) {
  const std::string lower = Lower(name);
  for (const std::string_view end : kSecretEnds) {
    if (lower.ends_with(end)) return true;
  }
  for (const std::string_view word : kSecretWords) {
    if (!lower.ends_with(word)) continue;
    const size_t at = lower.size() - word.size();
    const bool camel = at > 0 && std::isupper(static_cast<unsigned char>(name[at])) != 0 &&
                       std::islower(static_cast<unsigned char>(name[at - 1])) != 0;
    if (at == 0 || camel || std::isalnum(static_cast<unsigned char>(name[at - 1])) == 0) {
      return true;
    }
  }
  return false;
}

void LeaveOutTokens(std::string* line) {
  for (size_t at = 0; at < line->size(); ++at) {
    if (at > 0 && (IsNameChar((*line)[at - 1]) && (*line)[at - 1] != '-')) continue;
    for (const TokenForm& form : kTokenForms) {
      if (line->compare(at, form.prefix.size(), form.prefix) != 0) continue;
      size_t end = at + form.prefix.size();
      while (end < line->size() && IsNameChar((*line)[end])) ++end;
      if (end - at < form.prefix.size() + form.least) continue;
      line->replace(at, end - at, kLeftOut);
      break;
    }
  }
}

bool IsQuote(char c) { return c == '"' || c == '\'' || c == '\\'; }

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

// Leaves out the values of secrets' names, over as many lines as they have.
class Values {
 public:
  // nullopt: the line is part of a value.
  std::optional<std::string> Without(std::string line) {
    const size_t indent = Indent(line);
    const bool blank = indent == line.size();
    const bool item = line.compare(indent, 2, "- ") == 0;
    if (inside_ && (blank || indent > indent_ || (indent == indent_ && item && empty_))) {
      return std::nullopt;
    }
    inside_ = false;
    // The value of a flag that was the last word of the line before.
    if (flag_ && !blank) {
      flag_ = false;
      const size_t begin = line.find_first_not_of("- \t\"'", indent);
      const bool flag = line.find("--", indent) == begin - 2;
      if (begin != std::string::npos && !flag) LeaveOut(&line, begin, WordEnd(line, begin));
    }
    indent_ = indent;
    for (size_t at = 0; at < line.size();) at = Next(&line, at);
    return line;
  }

 private:
  static void LeaveOut(std::string* line, size_t begin, size_t end) {
    line->replace(begin, end - begin, kLeftOut);
  }
  static size_t WordEnd(const std::string& line, size_t from) {
    return std::min(line.find_first_of(" \t\"',]", from), line.size());
  }

  // Handles the first name at or after `from`. Where to go on.
  size_t Next(std::string* line, size_t from) {
    size_t begin = from;
    while (begin < line->size() && !IsNameChar((*line)[begin])) ++begin;
    size_t end = begin;
    while (end < line->size() && IsNameChar((*line)[end])) ++end;
    const std::string name = line->substr(begin, end - begin);
    size_t sign = end;
    // A backslash: the key is JSON within JSON.
    while (sign < line->size() && IsQuote((*line)[sign])) ++sign;
    sign = std::min(line->find_first_not_of(' ', sign), line->size());
    const bool has_value = sign < line->size() && ((*line)[sign] == ':' || (*line)[sign] == '=');
    if (!has_value) return IsSecretName(name) ? AfterFlag(line, name, end) : end;
    const size_t value = std::min(line->find_first_not_of(" \r", sign + 1), line->size());
    if (IsSecretName(name)) return AfterKey(line, sign, value);
    // Kubernetes and others have the name of a secret and its value as two values.
    if (Lower(name) == "name" && value < line->size()) {
      const size_t word = std::min(line->find_first_not_of("\"'\\", value), line->size());
      named_ = IsSecretName(line->substr(word, WordEnd(*line, word) - word));
    } else if (Lower(name) == "value" && named_) {
      named_ = false;
      return AfterKey(line, sign, value);
    }
    return sign + 1;
  }
  // "--password abc", also as JSON's list of arguments.
  size_t AfterFlag(std::string* line, const std::string& name, size_t end) {
    if (name.front() != '-') return end;
    const size_t value = std::min(line->find_first_not_of(" \t\"',\r", end), line->size());
    flag_ = value == line->size();
    if (flag_ || value == end || line->compare(value, 2, "--") == 0) return value;
    LeaveOut(line, value, WordEnd(*line, value));
    return value + std::string_view(kLeftOut).size();
  }
  size_t AfterKey(std::string* line, size_t sign, size_t value) {
    const bool yaml = (*line)[sign] == ':';
    if (value == line->size()) {
      inside_ = empty_ = yaml;
      return value;
    }
    if (line->compare(value, 2, "\"\"") == 0 || line->compare(value, 2, "''") == 0) {
      return value + 2;
    }
    // YAML indents the lines that a value goes on in.
    inside_ = yaml && (*line)[value] != '"' && (*line)[value] != '\'';
    empty_ = false;
    LeaveOut(line, value, ValueEnd(*line, value));
    return value + std::string_view(kLeftOut).size();
  }

  bool inside_ = false;  // A value may go on.
  bool empty_ = false;   // Its first line had nothing of it.
  bool flag_ = false;    // The value of a flag comes in the next line.
  bool named_ = false;   // A key "value" has a secret.
  size_t indent_ = 0;    // The indent of the last line that was no part of a value.
};

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
  Values values;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line(text.substr(begin, end - begin));
    begin = end + 1;
    if (in_pem && line.find(kPemEnd) != std::string::npos) {
      in_pem = false;
      continue;
    }
    if (in_pem && IsInsidePem(line)) continue;
    in_pem = LeaveOutPem(&line);
    LeaveOutUsers(&line);
    LeaveOutSchemes(&line);
    LeaveOutTokens(&line);
    const auto rest = values.Without(std::move(line));
    if (!rest) continue;
    out += *rest;
    if (end < text.size()) out += '\n';
  }
  return out;
}

}  // namespace cairn::cli
