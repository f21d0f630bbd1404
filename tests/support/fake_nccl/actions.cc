#include "tests/support/fake_nccl/actions.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

namespace cairn::link::fake {

Actions& Actions::Get() {
  // Never destroyed: threads that hang use it until the process has ended.
  static auto* const actions = new Actions;
  return *actions;
}

Actions::Actions() {
  const char* const options = std::getenv("CAIRN_FAKE_NCCL");
  Reset(options == nullptr ? "" : options);
}

void Actions::Reset(const std::string& options) {
  std::lock_guard lock(mu_);
  planned_.clear();
  words_.clear();
  calls_.clear();
  reports_.clear();
  std::stringstream in(options);
  for (std::string word; std::getline(in, word, ',');) {
    const size_t equals = word.find('=');
    const size_t colon = word.find(':');
    const std::string name = word.substr(0, equals);
    if (colon != std::string::npos) {
      planned_[{word.substr(equals + 1, colon - equals - 1),
                std::strtoull(word.c_str() + colon + 1, nullptr, 10)}] = name;
    } else if (!name.empty()) {
      words_[name] =
          equals == std::string::npos ? 1 : std::strtoull(word.c_str() + equals + 1, nullptr, 10);
    }
  }
}

std::string Actions::ActionOf(const std::string& name) {
  std::lock_guard lock(mu_);
  const auto it = planned_.find({name, calls_[name]++});
  return it == planned_.end() ? "" : it->second;
}

nccl::Answer Actions::Enter(const std::string& name) {
  const std::string action = ActionOf(name);
  if (action == "die") std::raise(SIGKILL);
  while (action == "hang") pause();
  return action == "fail" ? nccl::Answer::kSystemError : nccl::Answer::kSuccess;
}

bool Actions::Work() {
  const std::string action = ActionOf("work");
  if (action == "die") std::raise(SIGKILL);
  return action != "hang";
}

void Actions::Report(const std::string& text) {
  std::lock_guard lock(mu_);
  reports_ += text + "\n";
  std::fprintf(stderr, "fake NCCL: %s\n", text.c_str());
}

std::string Actions::TakeReports() {
  std::lock_guard lock(mu_);
  return std::exchange(reports_, {});
}

uint64_t Actions::Calls(const std::string& name) {
  std::lock_guard lock(mu_);
  return calls_[name];
}

int32_t Actions::version() {
  std::lock_guard lock(mu_);
  const auto it = words_.find("version");
  return it == words_.end() ? 23203 : static_cast<int32_t>(it->second);
}

bool Actions::Has(const std::string& word) {
  std::lock_guard lock(mu_);
  return words_.count(word) != 0;
}

}  // namespace cairn::link::fake
