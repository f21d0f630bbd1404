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
// - tokens that say so by their first letters: of GitHub, AWS, JWT and others;
// - the value of a key or flag whose last word is a secret's (password, token, access_key, ...), in
//   YAML, JSON, KEY=VALUE, "--flag value" and pairs of "name" and "value". The value may be in the
//   lines after it. A key that names a file (`..._file`) keeps its value.
// It may leave out too much, such as the rest of a line. It knows no secret that looks like any
// other word.
std::string WithoutSecrets(std::string_view text);

}  // namespace cairn::cli
