#include "tests/support/fake_device/options.h"

#include <cstdlib>
#include <sstream>

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

bool ParseFailure(const std::string& value, ParsedOptions* parsed) {
  const std::vector<std::string> words = Split(value, ':');
  PlannedFailure failure;
  if (words.size() != 4 || !ParseCode(words[3], &failure.code)) return false;
  failure.operation = words[0];
  failure.after = std::strtoull(words[1].c_str(), nullptr, 10);
  failure.times = std::strtoull(words[2].c_str(), nullptr, 10);
  parsed->failures.push_back(failure);
  return true;
}

bool ParseWord(const std::string& word, ParsedOptions* parsed) {
  FakeOptions& o = parsed->options;
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
  const uint64_t number = std::strtoull(value.c_str(), nullptr, 10);
  if (name == "seed")
    o.seed = number;
  else if (name == "devices")
    o.devices = static_cast<uint32_t>(number);
  else if (name == "memory")
    o.memory_bytes = number;
  else if (name == "granularity")
    o.granularity = number;
  else if (name == "pinned")
    o.pinned_bytes = number;
  else if (name == "rate")
    o.bytes_per_second = number;
  else if (name == "at_once")
    o.late = false;
  else if (name == "no_driver")
    o.has_driver = false;
  else if (name == "old_driver")
    o.old_driver = true;
  else if (name == "no_export")
    o.exports = false;
  else if (name == "no_register")
    o.registers = false;
  else if (name == "no_read_only")
    o.registers_read_only = false;
  else if (name == "kernels")
    parsed->kernels = value;
  else if (name == "fail")
    return ParseFailure(value, parsed);
  else
    return false;
  return true;
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
