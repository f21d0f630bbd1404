#include "tests/fault/adversary/honest_blocks.h"

#include <algorithm>

#include "tests/fault/support/fault_support.h"

namespace cairn::fault {
namespace {

// Most prompts that are read are among so many of the last stored ones.
constexpr uint64_t kHotPrompts = 48;
constexpr milliseconds kPatience = seconds(60);

client::ConnectOptions ConnectionOf(const std::string& address, const std::string& name,
                                    client::PathChoice path) {
  client::ConnectOptions options{.address = address, .client_name = name, .path = path};
  options.breaker = {
      .failures = 3, .first_backoff = milliseconds(10), .max_backoff = milliseconds(50)};
  options.max_reconnect_backoff = milliseconds(100);
  return options;
}

std::string CodeOf(const std::string& what, const Status& status) {
  return what + " " + absl::StatusCodeToString(status.code()) + ": " +
         Message(status).substr(0, 200);
}

}  // namespace

HonestBlocks::HonestBlocks(const TestedServer& node, const Options& options)
    : model_(options.model) {
  auto client = client::Connect(ConnectionOf(node.address(), options.model.tenant, options.path));
  CAIRN_CHECK(client.ok());
  client_ = *std::move(client);
  CAIRN_CHECK(WaitUntil(
      [this] { return client_->OpenNamespace(model_.spec(), {.deadline = seconds(5)}).ok(); },
      kPatience));
}

void HonestBlocks::Step(std::mt19937_64& random, HonestNotes& notes) {
  const uint64_t newest = next_prompt_.load();
  const bool old = newest > 0 && random() % 4 != 0;
  ReadAndStore(
      old ? newest - 1 - random() % std::min(newest, kHotPrompts) : next_prompt_.fetch_add(1),
      notes);
}

void HonestBlocks::ReadAndStore(uint64_t prompt, HonestNotes& notes) {
  const std::vector<BlockKey> keys = model_.MakePrompt(prompt);
  TimePoint begin = SteadyClock::Get().Now();
  const ReadOutcome read =
      Read(*client_, model_, keys,
           {.match_deadline = seconds(2), .fetch_deadline = seconds(10), .progress = seconds(5)});
  std::string failure;
  if (!read.status.ok()) {
    failure = CodeOf("read", read.status);
  } else if (read.failed_blocks > 0) {
    failure = "read: failed blocks:";
    for (size_t i = 0; i < read.misses.size(); ++i) {
      const auto reason = static_cast<client::MissReason>(i);
      if (read.misses[i] > 0) failure += fmt::format(" {}", Name(reason));
    }
  }
  notes.Note({"read", begin, failure, read.wrong, read.complete_blocks});
  if (!failure.empty() || read.matched_blocks >= keys.size()) return;

  begin = SteadyClock::Get().Now();
  const WriteOutcome write =
      Write(*client_, model_, keys, read.matched_blocks, model_.whole(), seconds(5));
  if (!write.status.ok()) failure = CodeOf("write", write.status);
  if (write.refused_parts > 0) failure = CodeOf("write refused", write.refused);
  notes.Note({"write", begin, failure});
  if (!failure.empty()) return;

  // Who was told that his block is stored finds it.
  begin = SteadyClock::Get().Now();
  const auto match =
      client_->Match(model_.fingerprint(), keys, {.deadline = seconds(2), .lease = false});
  if (!match.ok()) {
    failure = CodeOf("read back", match.status());
  } else if (match->matched_blocks < keys.size()) {
    failure = fmt::format("read back: stored, but not there: {}", Name(match->miss_reason));
  }
  notes.Note({"read back", begin, failure});
}

}  // namespace cairn::fault
