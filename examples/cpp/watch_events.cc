// Prints what a node holds, then what changes, until nothing has changed for a second.
//
//   watch_events [ADDRESS]        default: 127.0.0.1:7400

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>

#include "cairn/client/connect.h"
#include "cairn/client/next_action.h"

namespace client = cairn::client;
using Kind = client::CacheEvent::Kind;
using std::chrono::seconds;

const char* Name(Kind kind) {
  switch (kind) {
    case Kind::kStored:
      return "stored";
    case Kind::kRemoved:
      return "removed";
    case Kind::kTierAdded:
      return "tier added";
    case Kind::kTierRemoved:
      return "tier removed";
    case Kind::kSnapshotEnd:
      return "end of the snapshot";
    case Kind::kNamespaceDropped:
      return "namespace dropped";
  }
  return "unknown";
}

int main(int argc, char** argv) {
  const std::string address = argc > 1 ? argv[1] : "127.0.0.1:7400";
  auto connected = client::Connect({.address = address, .client_name = "watch_events"});
  if (!connected.ok()) return 1;
  client::CacheClient& node = **connected;

  auto events = node.WatchEvents({.snapshot = true});
  if (!events.ok()) return 1;
  bool in_snapshot = true;
  while (true) {
    const auto event = (*events)->Next(in_snapshot ? seconds(10) : seconds(1));
    if (!event.ok()) {
      // kRetryLater: the node is away, or we were too slow. Watch again, with a snapshot.
      const client::Action action = client::NextAction(event.status().code());
      std::fprintf(stderr, "%s: %s\n", std::string(client::Name(action)).c_str(),
                   cairn::ToString(event.status()).c_str());
      return 1;
    }
    if (!event->has_value()) return in_snapshot ? 1 : 0;
    if ((*event)->kind == Kind::kSnapshotEnd) in_snapshot = false;
    std::printf("%s %s\n", (*event)->key.Hex().substr(0, 8).c_str(), Name((*event)->kind));
  }
}
