#pragma once
// Leaves secrets out of text that people pass on.

#include <string>
#include <string_view>

namespace cairn::cli {

inline constexpr char kLeftOut[] = "[left out]";

// The text, line by line, without what looks like a secret:
// - blocks of PEM, also within a line of JSON;
// - the user and password of a URL;
// - what follows "Bearer" or "Basic";
// - the value of a key whose last word is a secret's (password, token, salt, ...), in YAML, JSON or
//   KEY=VALUE. A key that names a file (`..._file`) keeps its value.
// It may leave out too much, such as the rest of a line. It knows no secret that looks like any
// other word.
std::string WithoutSecrets(std::string_view text);

}  // namespace cairn::cli
