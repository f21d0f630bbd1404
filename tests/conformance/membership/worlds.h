#pragma once
// Where the discoveries of the suite come from: one world for each implementation.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "common/concurrency/timers.h"
#include "common/membership/cares_resolver.h"
#include "common/membership/dns_discovery.h"
#include "common/membership/etcd/etcd_discovery.h"
#include "common/membership/static_discovery.h"
#include "gtest/gtest.h"
#include "tests/support/etcd_cluster.h"
#include "tests/support/name_server.h"

namespace cairn::membership {

// A place where members find each other. Members have numbers from 1, which are in their addresses:
// 127.0.0.N.
class World {
 public:
  static constexpr uint16_t kPort = 7072;
  static std::string AddressOf(int number) { return fmt::format("127.0.0.{}:{}", number, kPort); }
  static Member MemberOf(int number) {
    return {.address = AddressOf(number),
            .id = fmt::format("node-{}", number),
            .epoch = 1,
            .incarnation = static_cast<uint64_t>(number)};
  }

  virtual ~World() = default;
  virtual std::unique_ptr<Discovery> NewDiscovery() = 0;
  // Announces members where they do not announce themselves.
  virtual void Announce(const std::vector<int>& /*numbers*/) {}
  // Whether members may come and go.
  virtual bool changes() const { return true; }
  // The place stops answering, and answers again.
  virtual void GoAway() = 0;
  virtual void ComeBack() = 0;
};

class Static final : public World {
 public:
  void Announce(const std::vector<int>& numbers) override {
    addresses_.clear();
    for (const int number : numbers) addresses_.push_back(AddressOf(number));
  }
  std::unique_ptr<Discovery> NewDiscovery() override {
    return std::make_unique<StaticDiscovery>(addresses_, &SteadyClock::Get());
  }
  bool changes() const override { return false; }
  void GoAway() override {}
  void ComeBack() override {}

 private:
  std::vector<std::string> addresses_;
};

class Dns : public World {
 public:
  Dns() {
    auto server = testing::NameServer::Create();
    CAIRN_CHECK(server.ok());
    server_ = *std::move(server);
    auto resolver = CaresResolver::Create(server_->address());
    CAIRN_CHECK(resolver.ok());
    resolver_ = *std::move(resolver);
    timers_.Start();
  }
  void Announce(const std::vector<int>& numbers) override {
    zone_ = ZoneOf(numbers);
    ComeBack();
  }
  std::unique_ptr<Discovery> NewDiscovery() override {
    return std::make_unique<DnsDiscovery>(
        DnsDiscovery::Options{
            .names = {name()}, .port = kPort, .interval = std::chrono::milliseconds(50)},
        resolver_.get(), &timers_, &SteadyClock::Get());
  }
  void GoAway() override { server_->Stop(); }
  void ComeBack() override { CAIRN_CHECK(server_->Serve(zone_).ok()); }

 protected:
  virtual std::string name() const { return "cairn.test"; }
  virtual testing::NameServer::Zone ZoneOf(const std::vector<int>& numbers) const {
    testing::NameServer::Zone zone{.name = "cairn.test"};
    for (const int number : numbers) zone.addresses.push_back(fmt::format("127.0.0.{}", number));
    return zone;
  }

 private:
  std::unique_ptr<testing::NameServer> server_;
  testing::NameServer::Zone zone_;
  Timers timers_{&SteadyClock::Get()};
  // Before the timers, which ask it.
  std::unique_ptr<CaresResolver> resolver_;
};

class DnsServices final : public Dns {
  std::string name() const override { return "_peer._tcp.cairn.test"; }
  testing::NameServer::Zone ZoneOf(const std::vector<int>& numbers) const override {
    testing::NameServer::Zone zone{.name = "cairn.test"};
    for (const int number : numbers) {
      zone.services.push_back({.name = "_peer._tcp.cairn.test",
                               .target = fmt::format("127.0.0.{}", number),
                               .port = kPort});
    }
    return zone;
  }
};

class Etcd final : public World {
 public:
  Etcd() {
    auto cluster = testing::EtcdCluster::Start({});
    CAIRN_CHECK(cluster.ok());
    cluster_ = *std::move(cluster);
  }
  std::unique_ptr<Discovery> NewDiscovery() override {
    auto discovery = EtcdDiscovery::Create(
        {.etcd = {.endpoints = cluster_->endpoints(), .timeout = std::chrono::seconds(1)},
         .prefix = "cairn/test/members/",
         .ttl = std::chrono::seconds(9)});
    CAIRN_CHECK(discovery.ok());
    return *std::move(discovery);
  }
  void GoAway() override {
    for (int i = 0; i < 3; ++i) cluster_->member(i).Signal(SIGSTOP);
  }
  void ComeBack() override {
    for (int i = 0; i < 3; ++i) cluster_->member(i).Signal(SIGCONT);
  }

 private:
  std::unique_ptr<testing::EtcdCluster> cluster_;
};

using Worlds = ::testing::Types<Static, Dns, DnsServices, Etcd>;
struct WorldNames {
  template <typename T>
  static std::string GetName(int i) {
    const char* const names[] = {"Static", "Dns", "DnsServices", "Etcd"};
    return names[i];
  }
};

}  // namespace cairn::membership
