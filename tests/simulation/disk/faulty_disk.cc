#include "tests/simulation/disk/faulty_disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "services/cache/store/tier/disk/stored_extent.h"

namespace cairn::testing {
namespace {

using cache::disk::FileRef;
using cache::disk::IoRequest;
using cache::disk::StoredExtent;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr size_t kPage = cache::disk::kPageBytes;
constexpr uint64_t kRoom = uint64_t{1} << 40;

using Bytes = std::vector<std::byte>;

class HandleOf final : public cache::disk::OpenFile {
 public:
  explicit HandleOf(uint32_t segment) : OpenFile(static_cast<int>(segment)) {}
};

Status Dead() { return Errorf(StatusCode::kUnavailable, "the simulated disk is gone"); }

}  // namespace

void DiskImage::Batch::ApplyTo(std::map<uint64_t, std::string>* records) const {
  for (const uint64_t id : forget) records->erase(id);
  for (const auto& [id, value] : store) (*records)[id] = value;
}

struct FaultyDisk::State : DiskImage {
  State(Simulation& s, DiskImage image, const DiskTroubles& t)
      : DiskImage(std::move(image)), simulation(s), troubles(t), records(synced_records) {
    for (const Batch& batch : log) batch.ApplyTo(&records);
  }

  bool Chance(uint32_t of_1000) { return simulation.Random(1000) < of_1000; }
  // The time that a request takes.
  void Take() {
    if (dead) return;
    if (Chance(troubles.hangs)) {
      simulation.Sleep(milliseconds(500 + simulation.Random(4000)));
    } else {
      simulation.Sleep(microseconds(20 + simulation.Random(400)));
    }
  }
  void Sync(File* file) {
    for (const size_t page : file->dirty) {
      std::memcpy(file->synced.data() + page * kPage, file->now.data() + page * kPage, kPage);
    }
    file->dirty.clear();
  }
  // The bytes of a file after a power loss.
  Bytes Torn(const File& file) {
    Bytes left = file.synced;
    for (const size_t page : file.dirty) {
      const std::byte* const now = file.now.data() + page * kPage;
      std::byte* const into = left.data() + page * kPage;
      switch (simulation.Random(4)) {
        case 0:
          break;  // Lost.
        case 1:
          std::memset(into, 0, kPage);
          break;
        case 2:
          std::memcpy(into, now, kPage / 2);
          break;
        default:
          std::memcpy(into, now, kPage);
      }
    }
    return left;
  }

  Simulation& simulation;
  DiskTroubles troubles;
  bool dead = false;
  std::map<uint64_t, std::string> records;  // As the process sees them.
  std::vector<uint32_t> late_syncs;         // Segments whose sync was acknowledged.
};

// ---- Requests ----

class FaultyDisk::Backend final : public cache::disk::IoBackend {
 public:
  explicit Backend(std::shared_ptr<State> state) : state_(std::move(state)) {}
  cache::disk::IoKind kind() const override { return cache::disk::IoKind::kThreads; }
  void Submit(IoRequest* request) override {
    state_->simulation.Start([state = state_, request] {
      state->Take();
      request->done(request, Do(*state, *request));
    });
  }

 private:
  // Bytes moved, or -errno.
  static int64_t Do(State& state, const IoRequest& request) {
    if (state.dead || state.Chance(state.troubles.fails)) return -EIO;
    const auto segment = static_cast<uint32_t>(request.fd);
    size_t wanted = 0;
    for (int i = 0; i < request.iov_count; ++i) wanted += request.iov[i].iov_len;
    const bool comes_short = wanted > kPage && state.Chance(state.troubles.comes_short);
    if (comes_short) wanted = kPage * (1 + state.simulation.Random(wanted / kPage));
    size_t moved = 0;
    for (int i = 0; i < request.iov_count && moved < wanted; ++i) {
      auto* memory = static_cast<std::byte*>(request.iov[i].iov_base);
      const size_t bytes = std::min(wanted - moved, request.iov[i].iov_len);
      for (size_t at = 0; at < bytes; at += kPage) {
        // A write may meet its end between any two pages.
        if (request.write && state.Chance(50)) state.simulation.Sleep(microseconds(5));
        const auto file = state.files.find(segment);
        if (state.dead || file == state.files.end()) return -EIO;
        const uint64_t offset = request.offset + moved + at;
        const size_t n = std::min(kPage, bytes - at);
        if (offset + n > file->second.now.size()) return -EIO;
        if (request.write) {
          std::memcpy(file->second.now.data() + offset, memory + at, n);
          file->second.dirty.insert(offset / kPage);
        } else {
          std::memcpy(memory + at, file->second.now.data() + offset, n);
        }
      }
      moved += bytes;
    }
    return static_cast<int64_t>(moved);
  }

  const std::shared_ptr<State> state_;
};

// ---- Files ----

class FaultyDisk::Files final : public cache::disk::SegmentFiles {
 public:
  explicit Files(std::shared_ptr<State> state) : state_(std::move(state)) {}

  Result<FileRef> Use(uint32_t segment) override {
    if (state_->dead || !state_->files.contains(segment)) return Dead();
    return FileRef(std::make_shared<const HandleOf>(segment));
  }
  Status Make(uint32_t segment, uint64_t bytes) override {
    state_->Take();
    if (state_->dead) return Dead();
    if (state_->Chance(state_->troubles.fails)) {
      return Errorf(StatusCode::kResourceExhausted, "the simulated disk is full");
    }
    DiskImage::File& file = state_->files[segment];
    file = {};
    file.now.resize(bytes);
    file.synced.resize(bytes);
    state_->deleted.erase(segment);
    return OkStatus();
  }
  void Delete(uint32_t segment) override {
    if (state_->dead) return;
    if (const auto file = state_->files.find(segment); file != state_->files.end()) {
      state_->deleted[segment] = std::move(file->second.now);
      state_->files.erase(file);
    }
  }
  Status Sync(uint32_t segment) override {
    state_->Take();
    if (state_->dead) return Dead();
    const auto file = state_->files.find(segment);
    if (file == state_->files.end()) return OkStatus();
    if (state_->Chance(state_->troubles.fails + state_->troubles.syncs_fail)) {
      return Errorf(StatusCode::kUnavailable, "the simulated disk cannot sync");
    }
    switch (state_->troubles.lie) {
      case DiskLie::kSyncDoesNothing:
        break;
      case DiskLie::kSyncComesLate:
        state_->late_syncs.push_back(segment);
        break;
      default:
        state_->Sync(&file->second);
    }
    return OkStatus();
  }
  Status SyncNames() override {
    state_->Take();
    if (state_->dead) return Dead();
    for (auto& [segment, file] : state_->files) file.named = true;
    state_->deleted.clear();
    return OkStatus();
  }
  uint64_t FreeBytes() const override { return kRoom; }
  std::string folder() const override { return "simulated"; }

 private:
  const std::shared_ptr<State> state_;
};

// ---- Records ----

class FaultyDisk::Records final : public cache::disk::RecordStore {
 public:
  explicit Records(std::shared_ptr<State> state) : state_(std::move(state)) {}

  Status Apply(std::span<const uint64_t> forget, std::span<const StoredExtent> store) override {
    DiskImage::Batch batch;
    batch.forget.assign(forget.begin(), forget.end());
    for (const StoredExtent& extent : store) {
      batch.store.emplace_back(extent.id, cache::disk::EncodeExtent(extent));
    }
    if (state_->troubles.lie == DiskLie::kRecordsComeAfterwards) {
      // The process sees its own records at once.
      batch.ApplyTo(&state_->records);
      state_->simulation.Start([state = state_, batch = std::move(batch)]() mutable {
        state->simulation.Sleep(milliseconds(3));
        if (!state->dead) state->log.push_back(std::move(batch));
      });
      return OkStatus();
    }
    state_->Take();
    if (state_->dead) return Dead();
    if (state_->Chance(state_->troubles.fails)) {
      return Errorf(StatusCode::kUnavailable, "the simulated database does not take records");
    }
    batch.ApplyTo(&state_->records);
    state_->log.push_back(std::move(batch));
    return OkStatus();
  }
  Result<std::string> RecordOf(uint64_t id) override {
    const auto found = state_->records.find(id);
    StoredExtent extent;
    if (found == state_->records.end() || !cache::disk::DecodeExtent(id, found->second, &extent)) {
      return Errorf(StatusCode::kNotFound, "no record {}", id);
    }
    return std::string(extent.record);
  }
  Status Scan(const std::function<void(const StoredExtent&)>& visitor,
              const std::function<void(uint64_t id)>& damaged) override {
    if (state_->dead) return Dead();
    const auto all = state_->records;
    for (const auto& [id, value] : all) {
      StoredExtent extent;
      if (cache::disk::DecodeExtent(id, value, &extent)) {
        visitor(extent);
      } else {
        damaged(id);
      }
    }
    return OkStatus();
  }
  Status Sync() override {
    const size_t until = state_->log.size();
    state_->Take();
    if (state_->dead) return Dead();
    if (state_->Chance(state_->troubles.fails)) {
      return Errorf(StatusCode::kUnavailable, "the simulated database cannot sync");
    }
    for (size_t i = 0; i < until; ++i) state_->log[i].ApplyTo(&state_->synced_records);
    state_->log.erase(state_->log.begin(), state_->log.begin() + static_cast<ptrdiff_t>(until));
    if (!state_->late_syncs.empty()) {
      state_->simulation.Start([state = state_, segments = std::exchange(state_->late_syncs, {})] {
        state->simulation.Sleep(milliseconds(20));
        for (const uint32_t segment : segments) {
          const auto file = state->files.find(segment);
          if (!state->dead && file != state->files.end()) state->Sync(&file->second);
        }
      });
    }
    return OkStatus();
  }
  Status Resume() override { return state_->dead ? Dead() : OkStatus(); }
  Status PutSmall(std::string_view key, std::string_view value) override {
    state_->Take();
    if (state_->dead) return Dead();
    state_->names[std::string(key)] = value;
    return OkStatus();
  }
  Status DeleteSmall(std::string_view key) override {
    state_->Take();
    if (state_->dead) return Dead();
    state_->names.erase(std::string(key));
    return OkStatus();
  }
  Result<std::string> GetSmall(std::string_view key) override {
    const auto found = state_->names.find(std::string(key));
    if (found == state_->names.end()) return Errorf(StatusCode::kNotFound, "no '{}'", key);
    return found->second;
  }
  Status ListSmall(
      std::string_view prefix,
      const std::function<void(std::string_view, std::string_view)>& visitor) override {
    for (const auto& [key, value] : state_->names) {
      if (key.starts_with(prefix)) visitor(key, value);
    }
    return OkStatus();
  }
  uint64_t MemoryBytes() override { return 0; }

 private:
  const std::shared_ptr<State> state_;
};

FaultyDisk::FaultyDisk(Simulation& simulation, DiskImage image, const DiskTroubles& troubles)
    : state_(std::make_shared<State>(simulation, std::move(image), troubles)),
      records_(std::make_unique<Records>(state_)),
      files_(std::make_unique<Files>(state_)) {}

FaultyDisk::~FaultyDisk() = default;

cache::disk::RecordStore& FaultyDisk::records() { return *records_; }
cache::disk::SegmentFiles& FaultyDisk::files() { return *files_; }

cache::disk::IoLanes FaultyDisk::NewLanes() {
  cache::disk::IoLanes lanes;
  lanes.writer = std::make_unique<Backend>(state_);
  lanes.readers.push_back(std::make_unique<Backend>(state_));
  lanes.ranges = std::make_unique<Backend>(state_);
  return lanes;
}

std::vector<std::pair<uint32_t, uint64_t>> FaultyDisk::FilesFound() const {
  std::vector<std::pair<uint32_t, uint64_t>> found;
  for (const auto& [segment, file] : state_->files) found.emplace_back(segment, file.now.size());
  return found;
}

void FaultyDisk::SetTroubles(const DiskTroubles& troubles) { state_->troubles = troubles; }

DiskImage FaultyDisk::LosePower() {
  State& state = *state_;
  DiskImage left;
  const auto add = [&](uint32_t segment, Bytes bytes) {
    left.files[segment] = {.now = bytes, .synced = std::move(bytes), .dirty = {}, .named = true};
  };
  for (const auto& [segment, file] : state.files) {
    // A file without a durable name may be away, or be there.
    if (file.named || state.Chance(500)) add(segment, state.Torn(file));
  }
  for (const auto& [segment, bytes] : state.deleted) {
    if (!left.files.contains(segment) && state.Chance(500)) add(segment, bytes);
  }
  left.synced_records = state.synced_records;
  for (const DiskImage::Batch& batch : state.log) {
    if (state.Chance(500)) batch.ApplyTo(&left.synced_records);
  }
  left.names = state.names;
  state.dead = true;
  return left;
}

DiskImage FaultyDisk::Kill() {
  state_->dead = true;
  return *state_;
}

uint64_t FaultyDisk::bytes() const {
  uint64_t sum = 0;
  for (const auto& [segment, file] : state_->files) sum += file.now.size();
  return sum;
}

}  // namespace cairn::testing
