#include "tests/simulation/disk/play.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "services/cache/store/tier/disk/extent_store.h"

namespace cairn::testing {
namespace {

using cache::Extent;
using cache::VictimGroup;
using cache::disk::ExtentStore;
using cache::disk::IoLanes;
using cache::disk::Loop;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kCapacity = 6 * kMiB;
constexpr int kWriters = 3;
constexpr int kNames = 3;

class Task final : public Loop {
 public:
  Task(Simulation& simulation, std::function<void()> body) : simulation_(simulation) {
    simulation.Start([this, body = std::move(body)] {
      body();
      MutexLock lock(mu_);
      done_ = true;
    });
  }
  ~Task() override {
    MutexLock lock(mu_);
    changed_.Wait(mu_, simulation_.clock(),
                  [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return done_; });
  }

 private:
  Simulation& simulation_;
  Mutex mu_;
  CondVar changed_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

// The bytes of the extent of this number.
std::vector<std::byte> BytesOf(uint64_t number, uint32_t length) {
  std::vector<std::byte> bytes(length);
  uint64_t x = number * 0x9E3779B97F4A7C15;
  for (size_t at = 0; at < length; at += sizeof(x)) {
    x = x * 6364136223846793005 + 1442695040888963407;
    std::memcpy(bytes.data() + at, &x, std::min(sizeof(x), length - at));
  }
  return bytes;
}

std::string RecordOf(uint64_t number) { return std::to_string(number); }

struct Stored {
  Extent extent;
  bool flushed = false;
  bool acknowledged = false;  // Else found after a crash, or released.
};

enum class End : uint8_t { kPeace, kKill, kPowerLoss };

class Player {
 public:
  explicit Player(const DiskPlay& play) : play_(play), simulation_(play.seed) {}

  DiskOutcome Run() {
    simulation_.Start([this] {
      for (uint32_t life = 0; life < play_.lives && outcome_.problems.empty(); ++life) Live();
      last_ = true;
      if (outcome_.problems.empty()) Live();
    });
    simulation_.Run();
    outcome_.trace = simulation_.trace();
    return std::move(outcome_);
  }

 private:
  void Problem(std::string text) {
    simulation_.Note("PROBLEM " + text);
    outcome_.problems.push_back(std::move(text));
  }

  // One process, from its start to its end. The last one only looks.
  void Live() {
    disk_ = std::make_unique<FaultyDisk>(simulation_, std::move(image_), DiskTroubles{});
    const IoLanes lanes = disk_->NewLanes();
    {
      auto map = ExtentStore::MapFor(kCapacity);
      store_.emplace(cache::disk::ExtentStoreOptions{.capacity_bytes = kCapacity,
                                                     .max_extent_bytes = 1 << 20,
                                                     .queue_depth = 4,
                                                     .queue_capacity = 64,
                                                     .scrub_bytes_per_second = 20 * kMiB,
                                                     .first_id = (++epoch_) << 40},
                     ExtentStore::Parts{.store = disk_->records(),
                                        .files = disk_->files(),
                                        .lanes = lanes,
                                        .clock = simulation_.clock(),
                                        .start = TasksOf(simulation_)},
                     std::move(map));
    }
    for (const auto& [segment, bytes] : disk_->FilesFound()) store_->AddFile(segment, bytes);
    Recover();
    if (!last_ && outcome_.problems.empty()) {
      disk_->SetTroubles(play_.troubles);
      const End end = static_cast<End>(simulation_.Random(3));
      crashed_ = false;
      stopping_ = false;
      std::vector<std::unique_ptr<Task>> tasks;
      for (int i = 0; i < kWriters; ++i) {
        tasks.push_back(std::make_unique<Task>(simulation_, [this] { Write(); }));
      }
      tasks.push_back(std::make_unique<Task>(simulation_, [this] { ReadSome(); }));
      tasks.push_back(std::make_unique<Task>(simulation_, [this] { Name(); }));
      simulation_.Sleep(microseconds(simulation_.Random(150'000)));
      EndBy(end);
      tasks.clear();
    }
    const uint64_t moved = store_->GetStats().extents.moved_bytes;
    outcome_.moved += moved;
    disk_->SetTroubles({});  // A clean end is not to fail.
    store_.reset();
    if (ended_ == End::kPeace) image_ = disk_->Kill();
    disk_.reset();
  }

  void EndBy(End end) {
    ended_ = end;
    stopping_ = true;
    if (end == End::kPeace) return simulation_.Note("ends");
    crashed_ = true;
    found_by_crash_ = stored_;
    names_by_crash_ = names_;
    if (end == End::kKill) {
      ++outcome_.kills;
      simulation_.Note("is killed");
      image_ = disk_->Kill();
    } else {
      ++outcome_.power_losses;
      simulation_.Note("loses power");
      image_ = disk_->LosePower();
    }
  }

  void Recover() {
    // The remains of a crash are judged by the knowledge of its moment.
    if (ended_ != End::kPeace) {
      stored_ = std::move(found_by_crash_);
      names_ = std::move(names_by_crash_);
    }
    std::map<uint64_t, Extent> found;
    const Status recovered = store_->Recover([&](const Extent& extent, std::string_view record) {
      if (!found.emplace(std::stoull(std::string(record)), extent).second) {
        Problem(fmt::format("extent {} was found twice", record));
      }
      return true;
    });
    if (!recovered.ok()) return Problem("it did not recover: " + ToString(recovered));
    std::map<uint64_t, Stored> now;
    for (const auto& [number, extent] : found) {
      const Status read = ReadOne(number, extent);
      const auto known = stored_.find(number);
      if (read.ok()) {
        const bool flushed = known != stored_.end() && known->second.flushed;
        now[number] = {.extent = extent, .flushed = flushed, .acknowledged = true};
      } else {
        store_->Release(extent);
      }
      if (ended_ == End::kPeace && known == stored_.end() && epoch_ > 1) {
        Problem(fmt::format("extent {} came back after it was released", number));
      }
    }
    for (const auto& [number, stored] : stored_) {
      const bool promised = ended_ == End::kPowerLoss ? stored.flushed : stored.acknowledged;
      if (!promised) continue;
      ++outcome_.promised;
      if (!now.contains(number)) {
        Problem(fmt::format("extent {} is {}, after {}", number,
                            found.contains(number) ? "damaged" : "gone",
                            ended_ == End::kPowerLoss ? "a power loss"
                            : ended_ == End::kKill    ? "a kill"
                                                      : "a clean end"));
      }
    }
    stored_ = std::move(now);
    RecoverNames();
    simulation_.Note(fmt::format("found {} extents", stored_.size()));
  }

  void RecoverNames() {
    std::map<std::string, uint64_t> found;
    (void)store_->names().List([&](std::string_view name, std::string_view value) {
      found[std::string(name)] = std::stoull(std::string(value));
    });
    for (auto& [name, value] : names_) {
      const auto is = found.find(name);
      if (value.acknowledged == 0) continue;
      if (is == found.end() || is->second < value.acknowledged || is->second > value.asked) {
        Problem(fmt::format("name {} has {}, expected {} to {}", name,
                            is == found.end() ? 0 : is->second, value.acknowledged, value.asked));
      } else {
        value.acknowledged = is->second;
      }
    }
  }

  Status ReadOne(uint64_t number, const Extent& extent) {
    std::vector<std::byte> bytes(extent.length);
    const Status status =
        Await([&](cache::IoCallback done) { store_->Read(extent, bytes, std::move(done)); });
    if (status.ok() && bytes != BytesOf(number, extent.length)) {
      Problem(fmt::format("a read of extent {} brought wrong bytes", number));
    }
    return status;
  }

  // Waits for a callback.
  template <typename Start>
  Status Await(Start start) {
    Mutex mu;
    CondVar changed;
    std::optional<Status> status;
    // An object that a callback holds may ask the tier when it ends, as transfers of a node do.
    const auto asks = [this](const void*) { (void)store_->GetStats(); };
    start([&, last = std::shared_ptr<const void>(nullptr, asks)](Status done) {
      MutexLock lock(mu);
      status = std::move(done);
    });
    MutexLock lock(mu);
    changed.Wait(mu, simulation_.clock(), [&] { return status.has_value(); });
    return *status;
  }

  void Release(uint64_t number) {
    const Extent extent = stored_.at(number).extent;
    stored_.erase(number);
    store_->Release(extent);
  }

  void MakeRoom() {
    const VictimGroup victims = store_->NextVictims();
    uint64_t keep = victims.keep_bytes;
    bool some = false;
    for (const VictimGroup::Member& member : victims.members) {
      if (member.record.empty()) continue;
      const uint64_t number = std::stoull(member.record);
      const auto it = stored_.find(number);
      if (it == stored_.end() || reading_.contains(number)) continue;
      if (member.extent.length <= keep && simulation_.Random(4) == 0) {
        keep -= member.extent.length;
        continue;
      }
      Release(number);
      some = true;
    }
    if (some || stored_.empty()) return;
    const auto it =
        std::next(stored_.begin(), static_cast<ptrdiff_t>(simulation_.Random(stored_.size())));
    if (!reading_.contains(it->first)) Release(it->first);
  }

  void Write() {
    while (!stopping_) {
      simulation_.Sleep(microseconds(simulation_.Random(2000)));
      const auto length = static_cast<uint32_t>(1 + simulation_.Random(120'000));
      const auto extent = store_->Reserve(length);
      if (!extent.ok()) {
        MakeRoom();
        continue;
      }
      const uint64_t number = ++last_number_;
      const std::string record = RecordOf(number);
      const std::vector<std::byte> bytes = BytesOf(number, length);
      const Status written = Await(
          [&](cache::IoCallback done) { store_->Write(*extent, record, bytes, std::move(done)); });
      if (!written.ok()) {
        store_->Release(*extent);
        continue;
      }
      if (crashed_) return;  // The crash was before the acknowledgement.
      ++outcome_.written;
      stored_[number] = {.extent = *extent, .flushed = false, .acknowledged = true};
      if (disk_->bytes() > std::max(64 * kMiB, kCapacity * 13 / 10)) {
        Problem(fmt::format("the files have {} bytes", disk_->bytes()));
      }
      if (simulation_.Random(6) == 0) Flush();
    }
  }

  void Flush() {
    std::vector<uint64_t> covered;
    for (const auto& [number, stored] : stored_) covered.push_back(number);
    const Status flushed = store_->Flush({});
    if (crashed_ || !flushed.ok()) return;
    ++outcome_.flushes;
    for (const uint64_t number : covered) {
      if (const auto it = stored_.find(number); it != stored_.end()) it->second.flushed = true;
    }
  }

  void ReadSome() {
    while (!stopping_) {
      simulation_.Sleep(microseconds(simulation_.Random(3000)));
      if (stored_.empty()) continue;
      const auto it =
          std::next(stored_.begin(), static_cast<ptrdiff_t>(simulation_.Random(stored_.size())));
      const uint64_t number = it->first;
      const Extent extent = it->second.extent;
      reading_.insert(number);
      const Status read = ReadOne(number, extent);
      reading_.erase(number);
      if (!read.ok() && !crashed_ && play_.troubles.fails == 0) {
        Problem(fmt::format("extent {} could not be read: {}", number, ToString(read)));
      }
    }
  }

  struct NamedValue {
    uint64_t acknowledged = 0;
    uint64_t asked = 0;
  };

  void Name() {
    while (!stopping_) {
      simulation_.Sleep(milliseconds(1 + simulation_.Random(20)));
      const std::string name = fmt::format("name {}", simulation_.Random(kNames));
      const uint64_t value = ++last_number_;
      names_[name].asked = value;
      const Status put = store_->names().Put(name, std::to_string(value));
      if (crashed_) return;
      if (put.ok()) names_[name].acknowledged = value;
    }
  }

  const DiskPlay play_;
  Simulation simulation_;
  DiskOutcome outcome_;
  DiskImage image_;
  std::unique_ptr<FaultyDisk> disk_;
  std::optional<ExtentStore> store_;
  uint64_t epoch_ = 0;
  uint64_t last_number_ = 0;
  bool last_ = false;
  bool stopping_ = false;
  bool crashed_ = false;
  End ended_ = End::kPeace;  // The end of the life before.
  // The extents that are there, by number; and as they were at the crash.
  std::map<uint64_t, Stored> stored_, found_by_crash_;
  std::set<uint64_t> reading_;
  std::map<std::string, NamedValue> names_, names_by_crash_;
};

}  // namespace

DiskOutcome Play(const DiskPlay& play) { return Player(play).Run(); }

cache::disk::StartLoop TasksOf(Simulation& simulation) {
  return [&simulation](const char*, std::function<void()> body) -> std::unique_ptr<Loop> {
    return std::make_unique<Task>(simulation, std::move(body));
  };
}

}  // namespace cairn::testing
