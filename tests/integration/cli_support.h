#pragma once
// Runs the `cairn` binary of this build in tests.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace cairn::testing {

// A random model of 1 MB with a chat template and 1,024 tokens of context; about one token a
// character.
inline constexpr char kTinyModel[] = "tests/data/gguf/kquant.gguf";

struct CommandResult {
  int code = -1;  // Exit code; 128 + signal number.
  std::string out;
  std::string err;

  nlohmann::json Json() const {
    auto json = nlohmann::json::parse(out, nullptr, /*allow_exceptions=*/false);
    EXPECT_FALSE(json.is_discarded()) << "no JSON: " << out << "\n" << err;
    return json;
  }
};

inline CommandResult RunProcess(std::vector<std::string> argv,
                                std::chrono::milliseconds timeout = std::chrono::seconds(120)) {
  CommandResult result;
  auto process = Process::Start({.argv = std::move(argv), .environment = {}, .directory = {}});
  if (!process.ok()) {
    result.err = ToString(process.status());
    return result;
  }
  const auto exit = (*process)->WaitExit(timeout);
  if (!exit.ok()) {
    (*process)->Kill();
    result.err = ToString(exit.status()) + "\n" + (*process)->err();
    return result;
  }
  result.code = exit->exited ? exit->code : 128 + exit->code;
  result.out = (*process)->out();
  result.err = (*process)->err();
  return result;
}

// `cairn ARGS...`
inline CommandResult Cairn(std::vector<std::string> args,
                           std::chrono::milliseconds timeout = std::chrono::seconds(120)) {
  args.insert(args.begin(), Binary("cairn"));
  return RunProcess(std::move(args), timeout);
}

// A system message for the tiny model: a few blocks, with room left for questions and answers.
inline std::string WriteSmallDocument(const std::string& directory) {
  const std::string path = directory + "/document.txt";
  std::ofstream file(path);
  for (int i = 0; i < 8; ++i) file << "A cairn is a stack of stones. ";
  return path;
}

inline std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace cairn::testing
