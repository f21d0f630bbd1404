// A same-node client that takes leases, lent bytes and rooms, says "holding ...", and then does
// nothing more, or reads forever: to be killed or stopped.
//
//   cairn_fault_holder ADDRESS hold|read

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string_view>
#include <vector>

#include "cairn/client/connect.h"
#include "common/log/log.h"
#include "tests/fault/load/actions.h"

namespace cairn::fault {
namespace {

class KeepingSink final : public client::FetchSink {
 public:
  bool WantsLent() const override { return true; }
  Status OnSlice(const client::SliceInfo&, std::span<const std::byte>) override {
    return OkStatus();
  }
  Status OnLentSlice(const client::SliceInfo&, std::span<const std::byte>,
                     std::shared_ptr<const client::LentHold> hold) override {
    holds.push_back(std::move(hold));
    return OkStatus();
  }
  void OnBlockFailed(uint32_t, client::MissReason) override {}
  std::vector<std::shared_ptr<const client::LentHold>> holds;
};

int Run(const char* address, bool read) {
  log::Configure({.level = log::Level::kError});
  const FaultModel model({});
  auto connected = client::Connect(
      {.address = address, .client_name = "holder", .path = client::PathChoice::kLocal});
  if (!connected.ok()) return 1;
  client::CacheClient& client = **connected;
  const client::CallOptions call{.deadline = std::chrono::seconds(20)};
  const client::MatchOptions match_options{.deadline = std::chrono::seconds(20)};
  if (!client.OpenNamespace(model.spec(), call).ok()) return 2;

  std::vector<client::Lease> leases;
  KeepingSink sink;
  for (uint64_t prompt = 0; prompt < 8; ++prompt) {
    const std::vector<BlockKey> keys = model.MakePrompt(prompt);
    if (!Write(client, model, keys, 0, model.whole(), std::chrono::seconds(20)).status.ok())
      return 3;
    auto match = client.Match(model.fingerprint(), keys, match_options);
    if (!match.ok() || !match->lease.held()) return 4;
    if (!client.Fetch(match->lease, {}, sink, {}).ok()) return 5;
    leases.push_back(std::move(match->lease));
  }
  std::vector<client::PartToWrite> parts;
  for (const BlockKey& key :
       FaultModel({.tenant = "fault", .model = "never stored"}).MakePrompt(1)) {
    parts.push_back({.key = key, .rect = model.whole(), .bytes = model.PartBytes(model.whole())});
  }
  auto push = client.BeginPush(model.fingerprint(), parts, {.deadline = std::chrono::seconds(20)});
  if (!push.ok() || (*push)->path() != client::Path::kLocal) return 6;
  std::printf("holding leases=%zu rooms=%zu lent=%zu\n", leases.size(), parts.size(),
              sink.holds.size());
  std::fflush(stdout);
  for (uint64_t prompt = 0; read; ++prompt) {
    if (!Read(client, model, model.MakePrompt(prompt % 8)).wrong.empty()) return 7;
  }
  while (true) pause();
}

}  // namespace
}  // namespace cairn::fault

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  return cairn::fault::Run(argv[1], std::string_view(argv[2]) == "read");
}
