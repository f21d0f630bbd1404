#include "tests/simulation/cluster/cluster_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "cairn/common/hash.h"

namespace cairn::testing {

ClusterWorld::ClusterWorld(Options options)
    : options_(std::move(options)),
      random_(options_.seed),
      network_(&agenda_, options_.machines, options_.seed + 1, options_.network),
      machines_(options_.machines) {
  for (size_t i = 0; i < machines_.size(); ++i) {
    machines_[i].id = fmt::format("node-{}", i);
    machines_[i].epoch = 1000;
  }
}

ClusterWorld::~ClusterWorld() {
  for (Machine& machine : machines_) machine.process.reset();
}

std::string ClusterWorld::AddressOf(size_t machine) {
  return fmt::format("10.{}.{}.{}:7000", machine >> 16, machine >> 8 & 255, machine & 255);
}

size_t ClusterWorld::MachineAt(const std::string& address) {
  size_t machine = 0, part = 0;
  // The first number is 10.
  for (size_t i = 3; i < address.size() && address[i] != ':'; ++i) {
    if (address[i] == '.') {
      machine = machine << 8 | part;
      part = 0;
    } else {
      part = part * 10 + static_cast<size_t>(address[i] - '0');
    }
  }
  return machine << 8 | part;
}

Process* ClusterWorld::process(size_t machine, uint64_t life) {
  Machine& there = machines_[machine];
  return there.lives == life ? there.process.get() : nullptr;
}

void ClusterWorld::Start(size_t number, Disk disk) {
  Machine& machine = machines_[number];
  if (machine.process != nullptr) return;
  if (disk == Disk::kEmpty) machine.disk = {};
  if (disk == Disk::kCopy) machine.disk = machine.copy;
  Process::Options options = options_.process;
  options.id = machine.id;
  options.address = AddressOf(number);
  options.machine = number;
  options.life = ++machine.lives;
  // As milliseconds since 1970, which grow without a disk, too.
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(Now().time_since_epoch());
  options.epoch = machine.epoch = std::max<uint64_t>(machine.epoch + 1, now.count());
  options.incarnation = random_() | 1;
  // Some writers of blocks are one rank, others are two.
  options.whole_engine.parts = 1 + number % 2;
  if (options_.versions_differ) options.newest_version -= random_() % 2;  // Version N next to N-1.
  if (options_.clocks_differ) {
    options.clock_offset = std::chrono::milliseconds(random_() % 3'600'000);
    options.clock_rate = 1 + (static_cast<double>(random_() % 2001) - 1000) * 1e-6;
  }
  machine.named = true;
  machine.process = std::make_unique<Process>(this, std::move(options), machine.disk);
  Note(100, number, machine.lives);
  machine.process->Start();
}

void ClusterWorld::Kill(size_t number, bool power_loss) {
  Machine& machine = machines_[number];
  if (machine.process == nullptr) return;
  machine.disk = machine.process->engine().Save(power_loss);
  machine.process.reset();
  Note(101, number, machine.lives);
  // The kernel tells those that were connected.
  for (size_t other = 0; other < machines_.size(); ++other) {
    if (machines_[other].process == nullptr) continue;
    const auto travel = network_.Travel(number, other);
    if (!travel) continue;
    agenda_.At(Now() + *travel,
               [this, other, life = machines_[other].lives, number, dead = machine.lives] {
                 Process* const there = process(other, life);
                 if (there == nullptr) return;
                 there->Enter([there, number, dead] { there->links().Broken(number, dead); });
               });
  }
}

void ClusterWorld::Leave(size_t number) {
  Machine& machine = machines_[number];
  if (machine.process == nullptr) return;
  machine.named = false;
  machine.process->Enter([there = machine.process.get()] { there->cluster().Leave(); });
  agenda_.At(Now() + std::chrono::seconds(1), [this, number, life = machine.lives] {
    if (process(number, life) != nullptr) Kill(number);
  });
}

void ClusterWorld::CopyDisk(size_t number) {
  Machine& machine = machines_[number];
  machine.copy = machine.process == nullptr ? machine.disk
                                            : machine.process->engine().Save(/*power_loss=*/false);
}

void ClusterWorld::Clone(size_t from, size_t to) {
  if (machines_[to].process != nullptr || from == to) return;
  CopyDisk(from);
  machines_[to].disk = machines_[from].copy;
  machines_[to].id = machines_[from].id;
  machines_[to].epoch = machines_[from].epoch;
  Start(to);
}

void ClusterWorld::SetNames(size_t number, NamesAre names) {
  Machine& machine = machines_[number];
  machine.names = names;
  machine.names_since = Now();
  machine.stale = Named();
}

void ClusterWorld::NameWhoLives() {
  for (size_t i = 0; i < machines_.size(); ++i) {
    machines_[i].named = machines_[i].process != nullptr;
    SetNames(i, NamesAre::kComplete);
  }
}

std::vector<size_t> ClusterWorld::Named() const {
  std::vector<size_t> named;
  for (size_t i = 0; i < machines_.size(); ++i) {
    if (machines_[i].named) named.push_back(i);
  }
  return named;
}

std::optional<std::vector<size_t>> ClusterWorld::NamesFor(size_t number, Status* error) {
  const Machine& machine = machines_[number];
  std::vector<size_t> names = Named();
  bool half = false;
  switch (machine.names) {
    case NamesAre::kComplete:
      break;
    case NamesAre::kPartial:
      half = true;
      break;
    case NamesAre::kFlapping:
      half = random_() % 2 == 0;
      break;
    case NamesAre::kStale:
      return machine.stale;
    case NamesAre::kEmpty:
      return std::vector<size_t>();
    case NamesAre::kFailing:
    case NamesAre::kAsleep:
      *error = Errorf(StatusCode::kUnavailable, "SERVFAIL");
      return std::nullopt;
  }
  if (half) std::erase_if(names, [this](size_t) { return random_() % 2 == 0; });
  return names;
}

std::vector<Process*> ClusterWorld::Newest() {
  std::map<std::string, Process*> by_id;
  const auto age = [](const Process& process) {
    return std::pair(process.options().epoch, process.options().incarnation);
  };
  for (Machine& machine : machines_) {
    if (machine.process == nullptr) continue;
    // Once its id was taken, a process stays away.
    if (machine.process->cluster().view().replaced_by) continue;
    Process*& newest = by_id[machine.id];
    if (newest == nullptr || age(*machine.process) > age(*newest)) newest = machine.process.get();
  }
  std::vector<Process*> all;
  for (const auto& [id, process] : by_id) all.push_back(process);
  return all;
}

void ClusterWorld::Note(uint64_t kind, uint64_t a, uint64_t b, uint64_t c) {
  const uint64_t entry[] = {
      trace_, static_cast<uint64_t>(Now().time_since_epoch().count()), kind, a, b, c};
  trace_ = Xxh3(std::as_bytes(std::span(entry)));
}

void ClusterWorld::Wrong(const std::string& what) {
  const double at = Seconds(Now().time_since_epoch() - std::chrono::hours(1));
  wrong_.push_back(fmt::format("{:.6f} s: {}", at, what));
}

}  // namespace cairn::testing
