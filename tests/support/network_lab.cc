#include "tests/support/network_lab.h"

#include <algorithm>
#include <utility>

namespace cairn::testing {
namespace {

constexpr char kInterface[] = "lab0";
constexpr size_t kMostMachines = 16;
constexpr uint32_t kAll = 1000;

std::string Port(size_t place) { return fmt::format("port{}", place); }

// A bucket that a segment of 64 KiB fits into, and about 20 ms of queue behind it.
std::vector<std::string> Shape(const std::string& device, uint64_t bits_per_second) {
  const uint64_t bytes_per_second = bits_per_second / 8;
  const uint64_t burst = std::clamp<uint64_t>(bytes_per_second / 200, 16 << 10, 256 << 10);
  const uint64_t limit = burst + std::max<uint64_t>(bytes_per_second / 50, 64 << 10);
  return {"tc",
          "qdisc",
          "replace",
          "dev",
          device,
          "root",
          "tbf",
          "rate",
          fmt::format("{}bit", bits_per_second),
          "burst",
          std::to_string(burst),
          "limit",
          std::to_string(limit)};
}

// Replaces the rules of a machine in one transaction: there is no moment without rules. Adding the
// table first lets its deletion succeed.
std::vector<std::string> Filter(const std::string& drops) {
  std::string rules = "add table ip lab; delete table ip lab";
  if (!drops.empty()) {
    rules += fmt::format(
        "; table ip lab {{ chain input {{ type filter hook input priority 0; {}}}; }}", drops);
  }
  return {"nft", rules};
}

// One rule. `per_mille`: 1 to 1,000.
std::string Drop(const std::string& from, uint32_t per_mille) {
  return fmt::format(
      "ip saddr {} {}drop; ", from,
      per_mille == kAll ? "" : fmt::format("numgen random mod {} < {} ", kAll, per_mille));
}

// The abilities that the kernel must have, tried in a namespace that goes with this call.
Status TryKernel(NetworkLab::Wiring wiring) {
  CAIRN_ASSIGN_OR_RETURN(const NetworkNamespace network, NetworkNamespace::Create());
  CAIRN_RETURN_IF_ERROR(network.Command(Filter(Drop("10.77.0.1", 5))));
  if (wiring == NetworkLab::Wiring::kSwitch) {
    Status made;
    network.Run([&] { made = FrameSwitch::MakeTap(kInterface).status(); });
    return made;
  }
  CAIRN_RETURN_IF_ERROR(network.Command({"ip", "link", "add", "bridge", "type", "bridge"}));
  CAIRN_RETURN_IF_ERROR(
      network.Command({"ip", "link", "add", "end0", "type", "veth", "peer", "name", "end1"}));
  return network.Command(Shape("end0", 1'000'000));
}

Status TryMachine(NetworkLab::Wiring wiring) {
  for (const char* const program : {"ip", "tc", "nft"}) {
    if (FindProgram(program).empty()) {
      return Errorf(StatusCode::kNotFound, "{} is not installed", program);
    }
  }
  static const Status entered = EnterOwnNetwork();
  CAIRN_RETURN_IF_ERROR(entered);
  return TryKernel(wiring);
}

}  // namespace

Status NetworkLab::Available(Wiring wiring) {
  static const Status bridge = Annotate(TryMachine(Wiring::kBridge), "no network lab");
  if (wiring == Wiring::kBridge || !bridge.ok()) return bridge;
  static const Status user_space = Annotate(TryMachine(Wiring::kSwitch), "no network lab");
  return user_space;
}

Result<std::unique_ptr<NetworkLab>> NetworkLab::Create(const Options& options) {
  CAIRN_RETURN_IF_ERROR(Available(options.wiring));
  if (options.machines < 1 || options.machines > kMostMachines) {
    return InvalidArgument("machines: got {}, expected 1 to {}", options.machines, kMostMachines);
  }
  std::unique_ptr<NetworkLab> lab(new NetworkLab());
  const std::vector<uint32_t> no_loss(options.machines + 1, 0);
  for (size_t i = 0; i < options.machines; ++i) {
    CAIRN_ASSIGN_OR_RETURN(NetworkNamespace network, NetworkNamespace::Create());
    lab->places_.push_back({std::move(network), no_loss});
  }
  CAIRN_ASSIGN_OR_RETURN(NetworkNamespace own, NetworkNamespace::Current());
  lab->places_.push_back({std::move(own), no_loss});
  CAIRN_RETURN_IF_ERROR(options.wiring == Wiring::kBridge ? lab->WireBridge()
                                                          : lab->WireSwitch(options));
  return lab;
}

NetworkLab::~NetworkLab() {
  processes_.clear();
  if (places_.size() < 2) return;
  // The tester's namespace lives on. The others take everything with them.
  const NetworkNamespace& own = places_.back().network;
  if (!bridge_.empty()) (void)own.Command({"ip", "link", "del", kInterface});
  std::ranges::fill(places_.back().loss, 0);
  (void)ApplyLoss(tester());
}

Status NetworkLab::WireBridge() {
  CAIRN_ASSIGN_OR_RETURN(NetworkNamespace made, NetworkNamespace::Create());
  bridge_.push_back(std::move(made));
  const NetworkNamespace& bridge = bridge_.back();
  CAIRN_RETURN_IF_ERROR(bridge.Command({"ip", "link", "add", "bridge", "type", "bridge"}));
  CAIRN_RETURN_IF_ERROR(bridge.Command({"ip", "link", "set", "bridge", "up"}));
  for (size_t place = 0; place < places_.size(); ++place) {
    CAIRN_RETURN_IF_ERROR(
        bridge.Command({"ip", "link", "add", Port(place), "type", "veth", "peer", "name",
                        kInterface, "netns", places_[place].network.path()}));
    CAIRN_RETURN_IF_ERROR(
        bridge.Command({"ip", "link", "set", Port(place), "master", "bridge", "up"}));
    CAIRN_RETURN_IF_ERROR(GiveAddress(place));
  }
  return OkStatus();
}

Status NetworkLab::WireSwitch(const Options& options) {
  std::vector<OwnedFd> taps;
  for (size_t place = 0; place < places_.size(); ++place) {
    const NetworkNamespace& network = places_[place].network;
    Result<OwnedFd> tap = OwnedFd();
    network.Run([&] { tap = FrameSwitch::MakeTap(kInterface); });
    CAIRN_RETURN_IF_ERROR(tap.status());
    taps.push_back(*std::move(tap));
    CAIRN_RETURN_IF_ERROR(network.Command({"ip", "link", "set", kInterface, "mtu", "9000",
                                           "address", FrameSwitch::StationAddress(place)}));
    CAIRN_RETURN_IF_ERROR(GiveAddress(place));
  }
  switch_ = std::make_unique<FrameSwitch>(std::move(taps), options.delay, options.seed);
  return OkStatus();
}

Status NetworkLab::GiveAddress(size_t place) {
  const NetworkNamespace& network = places_[place].network;
  CAIRN_RETURN_IF_ERROR(
      network.Command({"ip", "addr", "add", Address(place) + "/24", "dev", kInterface}));
  return network.Command({"ip", "link", "set", kInterface, "up"});
}

std::string NetworkLab::Address(size_t place) const { return fmt::format("10.77.0.{}", place + 1); }

Result<Process*> NetworkLab::Start(size_t machine, Process::Options options) {
  options.network = &places_[machine].network;
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<Process> process, Process::Start(options));
  processes_.push_back(std::move(process));
  return processes_.back().get();
}

void NetworkLab::Run(size_t machine, const std::function<void()>& function) const {
  places_[machine].network.Run(function);
}

Status NetworkLab::SetRate(size_t place, uint64_t bits_per_second) {
  if (bridge_.empty()) {
    return Errorf(StatusCode::kFailedPrecondition, "a lab with a switch has no rates");
  }
  Place& at = places_[place];
  for (const auto& [network, device] :
       {std::pair(&at.network, std::string(kInterface)), std::pair(&bridge_.back(), Port(place))}) {
    if (bits_per_second > 0) {
      CAIRN_RETURN_IF_ERROR(network->Command(Shape(device, bits_per_second)));
    } else if (at.shaped) {
      CAIRN_RETURN_IF_ERROR(network->Command({"tc", "qdisc", "del", "dev", device, "root"}));
    }
  }
  at.shaped = bits_per_second > 0;
  return OkStatus();
}

void NetworkLab::SetDelay(size_t from, size_t to, const LinkDelay& delay) {
  CAIRN_CHECK(switch_ != nullptr);
  switch_->SetDelay(from, to, delay);
}

Status NetworkLab::SetLoss(size_t from, size_t to, uint32_t per_mille) {
  places_[to].loss[from] = std::min(per_mille, kAll);
  return ApplyLoss(to);
}

Status NetworkLab::Isolate(size_t place) {
  for (size_t other = 0; other < places_.size(); ++other) {
    if (other == place) continue;
    places_[place].loss[other] = kAll;
    CAIRN_RETURN_IF_ERROR(Cut(place, other));
  }
  return ApplyLoss(place);
}

Status NetworkLab::RestoreAll() {
  for (size_t place = 0; place < places_.size(); ++place) {
    std::ranges::fill(places_[place].loss, 0);
    CAIRN_RETURN_IF_ERROR(ApplyLoss(place));
  }
  return OkStatus();
}

Status NetworkLab::ApplyLoss(size_t to) {
  std::string drops;
  for (size_t from = 0; from < places_.size(); ++from) {
    if (places_[to].loss[from] > 0) drops += Drop(Address(from), places_[to].loss[from]);
  }
  return places_[to].network.Command(Filter(drops));
}

}  // namespace cairn::testing
