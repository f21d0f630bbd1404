#include "services/cache/serve/node/events_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/status/matchers.h"

namespace cairn::cache {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The node's error about these settings, on this machine. `bounds`: those of its memory.
std::string SaidAbout(const std::vector<std::pair<std::string, std::string>>& settings,
                      MemoryAccount::Bounds* bounds = nullptr) {
  NodeConfig config;
  config::Schema schema("cairn-cache", "Summary.");
  NodeConfig::Register(&config, &schema);
  Status status;
  for (const auto& [name, value] : settings) {
    if (status.ok()) status = schema.Set(name, value, "flag");
  }
  if (status.ok()) status = schema.RunChecks();
  if (bounds != nullptr) *bounds = config.MemoryBounds();
  return status.ok() ? "" : Message(status);
}

TEST(EventsConfigTest, OtherMachinesReadThemInPlainWordsOnly) {
  for (const char* local :
       {"tcp://127.0.0.1:5557", "tcp://localhost:5557", "tcp://[::1]:5557", "ipc:///tmp/events"}) {
    EXPECT_THAT(SaidAbout({{"events.zmq", local}}), Not(HasSubstr("events.zmq"))) << local;
  }
  for (const char* open : {"tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::]:5557",
                           "tcp://10.0.0.1:5557", "tcp://eth0:5557"}) {
    EXPECT_THAT(
        SaidAbout({{"events.zmq", open}}),
        HasSubstr(fmt::format("events.zmq: '{}' can be reached from other machines", open)));
    EXPECT_THAT(SaidAbout({{"events.zmq", "tcp://127.0.0.1:5557"}, {"events.zmq_replay", open}}),
                HasSubstr("events.zmq_replay: '"));
    EXPECT_THAT(SaidAbout({{"events.zmq", open}, {"events.trusted_network", "true"}}),
                Not(HasSubstr("events.zmq")));
    // TLS of the data port is none of theirs.
    EXPECT_THAT(SaidAbout({{"events.zmq", open}, {"tls.allow_plaintext_beyond_loopback", "true"}}),
                HasSubstr("events.trusted_network"));
  }
}

TEST(EventsConfigTest, WrongEndpointsAreNamed) {
  for (const char* wrong :
       {"5557", "127.0.0.1:5557", "tcp://127.0.0.1", "tcp://127.0.0.1:0", "tcp://:5557",
        "tcp://127.0.0.1:70000", "tcp://unix:/x", "ipc://events", "ipc://@events", "inproc://x",
        "udp://127.0.0.1:1", "tcp://127.0.0.1:5557,tcp://127.0.0.1:5558"}) {
    for (const char* setting : {"events.zmq", "events.zmq_replay"}) {
      EXPECT_THAT(SaidAbout({{"events.zmq", "ipc:///tmp/a"}, {setting, wrong}}),
                  HasSubstr(fmt::format("{}: got '{}', expected tcp://HOST:PORT", setting, wrong)));
    }
  }
  EXPECT_THAT(SaidAbout({{"events.zmq_replay", "tcp://127.0.0.1:5558"}}),
              HasSubstr("events.zmq_replay: got 'tcp://127.0.0.1:5558', expected none"));
}

TEST(EventsConfigTest, NoTwoListenAtOnePlace) {
  EXPECT_THAT(SaidAbout({{"events.zmq", "tcp://127.0.0.1:7400"}}),
              HasSubstr("events.zmq: got '127.0.0.1:7400', which listen has already"));
  EXPECT_THAT(SaidAbout({{"events.zmq", "ipc:///tmp/a"}, {"events.zmq_replay", "ipc:///tmp/a"}}),
              HasSubstr("which events.zmq has already"));
}

TEST(EventsConfigTest, ARouterMayListenInstead) {
  const std::pair<std::string, std::string> connect{"events.connect", "true"};
  // Not an address of this process.
  EXPECT_THAT(SaidAbout({connect, {"events.zmq", "tcp://127.0.0.1:7400"}}),
              Not(HasSubstr("events.zmq")));
  // What it sends there is as little of a secret.
  EXPECT_THAT(SaidAbout({connect, {"events.zmq", "tcp://router.kv.svc:5557"}}),
              HasSubstr("events.trusted_network"));
  const std::pair<std::string, std::string> trusted{"events.trusted_network", "true"};
  EXPECT_THAT(SaidAbout({connect, trusted, {"events.zmq", "tcp://router.kv.svc:5557"}}),
              Not(HasSubstr("events.zmq")));
  EXPECT_THAT(SaidAbout({connect, trusted, {"events.zmq", "tcp://*:5557"}}),
              HasSubstr("events.zmq: got 'tcp://*:5557', expected the router's machine"));
}

TEST(EventsConfigTest, TopicAndTenantAreChecked) {
  EXPECT_THAT(
      SaidAbout({{"events.topic", "kv@{pod}"}}),
      HasSubstr("events.topic: got 'kv@{pod}', expected braces around node, host or model"));
  EXPECT_THAT(SaidAbout({{"events.topic", ""}}), Not(HasSubstr("events.topic")));
  EXPECT_THAT(SaidAbout({{"events.tenant", ""}}), HasSubstr("events.tenant: got ''"));
  EXPECT_THAT(SaidAbout({{"events.encoding", "json"}}), HasSubstr("maps, arrays"));
  EXPECT_THAT(SaidAbout({{"events.hashes", "hex"}}), HasSubstr("integers, bytes"));
  EXPECT_THAT(SaidAbout({{"events.memory", "1KiB"}}), HasSubstr("events.memory"));
}

TEST(EventsConfigTest, TheirMemoryCountsIfTheyArePublished) {
  MemoryAccount::Bounds bounds{};
  SaidAbout({}, &bounds);
  EXPECT_EQ(bounds[static_cast<size_t>(MemoryItem::kEvents)], 0u);
  SaidAbout({{"events.zmq", "ipc:///tmp/a"}, {"events.memory", "5MiB"}}, &bounds);
  EXPECT_EQ(bounds[static_cast<size_t>(MemoryItem::kEvents)], 5u << 20);
}

TEST(EventsConfigTest, NamesBecomeNumbersForZeroMq) {
  const auto bound = [](const std::string& text) {
    const auto address = ParseEventsEndpoint(text, "events.zmq");
    return address.ok() ? BindEndpoint(*address) : Message(address.status());
  };
  EXPECT_EQ(bound("tcp://*:5557"), "tcp://0.0.0.0:5557");
  EXPECT_EQ(bound("tcp://localhost:5557"), "tcp://127.0.0.1:5557");
  EXPECT_EQ(bound("tcp://[::1]:5557"), "tcp://[::1]:5557");
  EXPECT_EQ(bound("ipc:///tmp/events"), "ipc:///tmp/events");
}

}  // namespace
}  // namespace cairn::cache
