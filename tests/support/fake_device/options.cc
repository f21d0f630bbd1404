#include "tests/support/fake_device/options.h"

#include <charconv>
#include <sstream>
#include <tuple>

namespace cairn::device::fake {
namespace {

std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> words;
  std::stringstream in(text);
  for (std::string word; std::getline(in, word, at);) words.push_back(word);
  return words;
}

bool ParseCode(const std::string& word, Code* code) {
  const std::pair<const char*, Code> codes[] = {{"memory", Code::kOutOfMemory},
                                                {"unsupported", Code::kNotSupported},
                                                {"refused", Code::kRefused},
                                                {"lost", Code::kLost},
                                                {"other", Code::kOther}};
  for (const auto& [name, value] : codes) {
    if (word != name) continue;
    *code = value;
    return true;
  }
  return false;
}

// A whole decimal number and nothing else.
template <typename T>
bool ParseNumber(const std::string& word, T* number) {
  const char* const end = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data(), end, *number);
  return error == std::errc() && at == end;
}

bool ParseFailure(const std::string& value, ParsedOptions* parsed) {
  const std::vector<std::string> words = Split(value, ':');
  PlannedFailure failure;
  if (words.size() != 4 || !ParseCode(words[3], &failure.code)) return false;
  failure.operation = words[0];
  if (!ParseNumber(words[1], &failure.after) || !ParseNumber(words[2], &failure.times)) {
    return false;
  }
  parsed->failures.push_back(failure);
  return true;
}

bool ParseValue(const std::string& name, const std::string& value, ParsedOptions* parsed) {
  FakeOptions& o = parsed->options;
  if (name == "seed") return ParseNumber(value, &o.seed);
  if (name == "devices") return ParseNumber(value, &o.devices);
  if (name == "memory") return ParseNumber(value, &o.memory_bytes);
  if (name == "granularity") return ParseNumber(value, &o.granularity);
  if (name == "pinned") return ParseNumber(value, &o.pinned_bytes);
  if (name == "rate") return ParseNumber(value, &o.bytes_per_second);
  if (name == "fail") return ParseFailure(value, parsed);
  if (name != "kernels") return false;
  parsed->kernels = value;
  return !value.empty();
}

bool ParseSwitch(const std::string& name, FakeOptions* o) {
  const std::tuple<const char*, bool*, bool> switches[] = {
      {"at_once", &o->late, false},          {"no_driver", &o->has_driver, false},
      {"old_driver", &o->old_driver, true},  {"no_export", &o->exports, false},
      {"no_register", &o->registers, false}, {"no_read_only", &o->registers_read_only, false}};
  for (const auto& [known, target, value] : switches) {
    if (name != known) continue;
    *target = value;
    return true;
  }
  return false;
}

bool ParseWord(const std::string& word, ParsedOptions* parsed) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos) return ParseSwitch(word, &parsed->options);
  return ParseValue(word.substr(0, equals), word.substr(equals + 1), parsed);
}

}  // namespace

ParsedOptions ParseOptions(const std::string& text) {
  ParsedOptions parsed;
  for (const std::string& word : Split(text, ',')) {
    if (!word.empty() && !ParseWord(word, &parsed)) parsed.error = word;
  }
  return parsed;
}

}  // namespace cairn::device::fake
