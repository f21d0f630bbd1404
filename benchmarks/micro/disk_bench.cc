// The disk tier next to raw io_uring on the same file system, in turns: same sizes, same depth,
// O_DIRECT, overwriting extents that were written before. And the write amplification of steady
// churn in a full tier.
//
//   disk_bench [--json] [--dir DIR] [--sizes 65536,1048576] [--depth 8] [--rounds 5]
//              [--mib 256] [--backend auto] [--churn-only]
//
// Each round writes and reads --mib MiB per size and side; the median of the rounds counts, ratios
// are taken within a round. Needs about 1.7 GiB in DIR (default: the folder for temporary files),
// which is emptied at the end. Exit code 1 when something fails.

#include <fcntl.h>
#include <liburing.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/concurrency/mutex.h"
#include "common/log/log.h"
#include "services/cache/store/tier/disk/disk_tier.h"

namespace cairn {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kCapacity = 768 * kMiB;

struct Arguments {
  bool json = false;
  bool churn_only = false;
  std::string directory = std::filesystem::temp_directory_path();
  std::vector<uint64_t> sizes = {64 << 10, 256 << 10, 1 << 20, 4 << 20};
  size_t depth = 8;
  int rounds = 5;
  uint64_t bytes = 256 * kMiB;
  std::string backend = "auto";
};

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "disk_bench: %s\n", why.c_str());
  std::exit(1);
}

template <typename T>
T Need(Result<T> result) {
  if (!result.ok()) Die(ToString(result.status()));
  return *std::move(result);
}

struct Sample {
  double gigabytes_per_second = 0;
  double cpu_seconds_per_gigabyte = 0;
};

// Wall and processor time of a piece of work.
class Timer {
 public:
  Timer() : wall_(std::chrono::steady_clock::now()), cpu_(Cpu()) {}
  Sample Stop(uint64_t bytes) const {
    const double wall =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_).count();
    const double gigabytes = static_cast<double>(bytes) * 1e-9;
    return {gigabytes / wall, (Cpu() - cpu_) / gigabytes};
  }

 private:
  static double Cpu() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  const std::chrono::steady_clock::time_point wall_;
  const double cpu_;
};

// Page-aligned memory, different in each page.
class Memory {
 public:
  explicit Memory(uint64_t bytes)
      : data_(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)), std::free) {
    if (data_ == nullptr) Die("no memory");
    std::mt19937_64 random(7);
    for (uint64_t i = 0; i < bytes; i += 8) {
      const uint64_t value = random();
      std::memcpy(data_.get() + i, &value, 8);
    }
  }
  std::byte* data() const { return data_.get(); }

 private:
  std::unique_ptr<std::byte, void (*)(void*)> data_;
};

class RawFile {
 public:
  RawFile(const std::string& path, uint64_t bytes, const Memory& memory)
      : path_(path), bytes_(bytes) {
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
    if (fd_ < 0) Die("O_DIRECT does not work in this folder: raw I/O cannot be compared");
    if (fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) != 0) Die("no room for the raw file");
    // So that what is measured overwrites.
    for (uint64_t at = 0; at < bytes; at += 16 * kMiB) {
      if (pwrite(fd_, memory.data(), std::min(16 * kMiB, bytes - at), static_cast<off_t>(at)) <= 0)
        Die("pwrite");
    }
  }
  ~RawFile() {
    close(fd_);
    unlink(path_.c_str());
  }

  // Writes run on through the file, reads go to random places.
  Sample Run(bool write, uint64_t size, size_t depth, uint64_t total, const Memory& memory) {
    io_uring ring;
    if (io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0) != 0)
      Die("io_uring does not work here");
    std::mt19937_64 random(static_cast<uint64_t>(at_) + 1);
    const uint64_t count = total / size;
    std::vector<size_t> idle;
    for (size_t i = 0; i < depth; ++i) idle.push_back(i);
    uint64_t started = 0;
    uint64_t ended = 0;
    const Timer timer;
    while (ended < count) {
      while (started < count && !idle.empty()) {
        const size_t slot = idle.back();
        idle.pop_back();
        if (at_ + size > bytes_) at_ = 0;
        const uint64_t at = write ? at_ : random() % (bytes_ / size) * size;
        at_ += write ? size : 0;
        io_uring_sqe* sqe = io_uring_get_sqe(&ring);
        auto* const buffer = memory.data() + slot * size;
        if (write) {
          io_uring_prep_write(sqe, fd_, buffer, static_cast<unsigned>(size), at);
        } else {
          io_uring_prep_read(sqe, fd_, buffer, static_cast<unsigned>(size), at);
        }
        io_uring_sqe_set_data64(sqe, slot);
        ++started;
      }
      io_uring_submit_and_wait(&ring, 1);
      io_uring_cqe* cqe = nullptr;
      while (io_uring_peek_cqe(&ring, &cqe) == 0) {
        if (cqe->res != static_cast<int>(size)) Die("raw I/O failed: " + std::to_string(cqe->res));
        idle.push_back(io_uring_cqe_get_data64(cqe));
        io_uring_cqe_seen(&ring, cqe);
        ++ended;
      }
    }
    const Sample sample = timer.Stop(count * size);
    io_uring_queue_exit(&ring);
    return sample;
  }

 private:
  const std::string path_;
  const uint64_t bytes_;
  int fd_ = -1;
  uint64_t at_ = 0;
};

// Keeps `depth` operations of a tier under way.
class Window {
 public:
  explicit Window(size_t depth) {
    for (size_t i = 0; i < depth; ++i) idle_.push_back(i);
    depth_ = depth;
  }
  size_t Take() {
    MutexLock lock(mu_);
    changed_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !idle_.empty(); });
    const size_t slot = idle_.back();
    idle_.pop_back();
    return slot;
  }
  cache::IoCallback Give(size_t slot) {
    return [this, slot](Status status) {
      if (!status.ok()) Die(ToString(status));
      MutexLock lock(mu_);
      idle_.push_back(slot);
      changed_.NotifyAll();
    };
  }
  void WaitForAll() {
    MutexLock lock(mu_);
    changed_.Wait(mu_,
                  [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return idle_.size() == depth_; });
  }

 private:
  Mutex mu_;
  CondVar changed_;
  size_t depth_ = 0;
  std::vector<size_t> idle_ ABSL_GUARDED_BY(mu_);
};

// A full tier whose owner evicts what the tier advises.
class TierUnderTest {
 public:
  TierUnderTest(const std::string& directory, const std::string& backend, size_t depth) {
    cache::DiskTierOptions options;
    options.directory = directory;
    options.capacity_bytes = kCapacity;
    options.queue_depth = depth;
    options.io_backend = backend;
    options.min_free_bytes = 0;
    tier_ = Need(cache::DiskTier::Open(options));
    if (const Status status =
            tier_->Recover([](const cache::Extent&, std::string_view) { return true; });
        !status.ok()) {
      Die(ToString(status));
    }
  }
  cache::DiskTier& tier() { return *tier_; }

  // As the engine does: of the victims, the lately used stay, as far as the tier allows.
  cache::Extent Reserve(uint32_t size) {
    for (;;) {
      const auto extent = tier_->Reserve(size);
      if (extent.ok()) {
        used_[extent->id] = {*extent, {}};
        return *extent;
      }
      const auto now = std::chrono::steady_clock::now();
      const cache::VictimGroup victims = tier_->NextVictims();
      uint64_t kept = 0;
      size_t released = 0;
      for (const auto& member : victims.members) {
        const auto use = used_.find(member.extent.id);
        const bool hot = use->second.second > now - member.age;
        if (hot && kept + member.extent.length <= victims.keep_bytes) {
          kept += member.extent.length;
          continue;
        }
        tier_->Release(member.extent);
        used_.erase(use);
        ++released;
      }
      if (released == 0) {
        tier_->Release(used_.begin()->second.first);
        used_.erase(used_.begin());
      }
    }
  }

  // Twice the depth is handed in: the tier keeps `depth` of them at the device, while the records
  // of others are written.
  void Write(uint64_t size, size_t depth, uint64_t total, const Memory& memory) {
    Window window(2 * depth);
    for (uint64_t i = 0; i < total / size; ++i) {
      const size_t slot = window.Take();
      const cache::Extent extent = Reserve(static_cast<uint32_t>(size));
      tier_->Write(extent, kRecord, {memory.data() + slot * size, size}, window.Give(slot));
    }
    window.WaitForAll();
  }
  void Read(uint64_t size, size_t depth, uint64_t total, const Memory& memory,
            std::mt19937_64* random) {
    std::vector<cache::Extent> extents;
    for (const auto& [id, extent] : used_) {
      if (extent.first.length == size) extents.push_back(extent.first);
    }
    Window window(depth);
    for (uint64_t i = 0; i < total / size; ++i) {
      const size_t slot = window.Take();
      const cache::Extent extent = extents[(*random)() % extents.size()];
      tier_->Read(extent, {memory.data() + slot * size, size}, window.Give(slot));
    }
    window.WaitForAll();
  }
  // Uses something that is stored, the newer the likelier.
  void Touch(std::mt19937_64* random) {
    const double x = std::generate_canonical<double, 32>(*random);
    auto it = used_.rbegin();
    std::advance(it, static_cast<ptrdiff_t>(x * x * x * static_cast<double>(used_.size() - 1)));
    it->second.second = std::chrono::steady_clock::now();
  }

 private:
  const std::string kRecord = std::string(140, 'r');  // As long as the engine's.
  std::unique_ptr<cache::DiskTier> tier_;
  std::map<uint64_t, std::pair<cache::Extent, std::chrono::steady_clock::time_point>> used_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Row {
  std::string name;
  uint64_t size = 0;
  std::vector<Sample> raw = {}, tier = {};
};

std::string List(const std::vector<double>& values) {
  std::string out;
  for (const double value : values) out += (out.empty() ? "" : ", ") + std::to_string(value);
  return "[" + out + "]";
}

void PrintRow(const Row& row, bool json, bool last) {
  std::vector<double> raw, tier, ratio, cpu, raw_cpu;
  for (size_t i = 0; i < row.raw.size(); ++i) {
    raw.push_back(row.raw[i].gigabytes_per_second);
    tier.push_back(row.tier[i].gigabytes_per_second);
    ratio.push_back(tier.back() / raw.back());
    cpu.push_back(row.tier[i].cpu_seconds_per_gigabyte);
    raw_cpu.push_back(row.raw[i].cpu_seconds_per_gigabyte);
  }
  const auto [low, high] = std::minmax_element(ratio.begin(), ratio.end());
  const std::string samples =
      json ? ", \"tier_samples\": " + List(tier) + ", \"cpu_samples\": " + List(cpu)
           : std::string();
  std::printf(json ? "    {\"name\": \"%s\", \"bytes\": %llu, \"raw_gb_per_s\": %.3f, "
                     "\"tier_gb_per_s\": %.3f, \"ratio\": "
                     "%.3f, \"ratio_min\": %.3f, \"ratio_max\": %.3f, \"cpu_s_per_gb\": %.3f, "
                     "\"raw_cpu_s_per_gb\": %.3f%s}%s\n"
                   : "%-6s %8llu B   raw %6.3f   tier %6.3f GB/s   ratio %.3f (%.3f to %.3f)   "
                     "%.3f core-s/GB (raw %.3f)%s%s\n",
              row.name.c_str(), static_cast<unsigned long long>(row.size), Median(raw),
              Median(tier), Median(ratio), *low, *high, Median(cpu), Median(raw_cpu),
              samples.c_str(), json && !last ? "," : "");
}

uint64_t DeviceWrites() {
  std::ifstream in("/proc/self/io");
  std::string key;
  uint64_t value = 0;
  while (in >> key >> value) {
    if (key == "write_bytes:") return value;
  }
  return 0;
}

struct Churn {
  double amplification = 0;  // The amplification of writes, by the tier's own count.
  double device = 0;         // Bytes that the process wrote for each byte of payload.
  double least_full = 0;
};

// Steady churn: the tier is full all the time; sizes are mixed, and a use comes with every write.
Churn MeasureChurn(TierUnderTest& tier, const Memory& memory, size_t depth,
                   std::mt19937_64* random) {
  const auto before = tier.tier().GetDiskStats();
  const uint64_t payload_before = tier.tier().GetStats().written_bytes;
  const uint64_t device_before = DeviceWrites();
  uint64_t fill = UINT64_MAX;
  {
    Window window(depth);
    uint64_t written = 0;
    while (written < 2 * kCapacity) {
      const auto size =
          static_cast<uint32_t>(64 << 10) * static_cast<uint32_t>(1 + (*random)() % 16);
      const size_t slot = window.Take();
      const cache::Extent extent = tier.Reserve(size);
      tier.tier().Write(extent, "record", {memory.data() + slot * kMiB, size}, window.Give(slot));
      written += size;
      tier.Touch(random);
      fill = std::min(fill, tier.tier().GetStats().used_bytes);
    }
    window.WaitForAll();
  }
  const auto after = tier.tier().GetDiskStats();
  const double payload = static_cast<double>(tier.tier().GetStats().written_bytes - payload_before);
  Churn churn;
  churn.amplification = 1 + static_cast<double>(after.moved_bytes - before.moved_bytes) / payload;
  churn.device = static_cast<double>(DeviceWrites() - device_before) / payload;
  churn.least_full = static_cast<double>(fill) / static_cast<double>(kCapacity);
  return churn;
}

void Run(const Arguments& arguments) {
  const std::string directory =
      arguments.directory + "/cairn_disk_bench_" + std::to_string(getpid());
  std::filesystem::create_directories(directory);
  struct Remove {
    std::string path;
    ~Remove() { std::filesystem::remove_all(path); }
  } remove{directory};
  const uint64_t largest = *std::max_element(arguments.sizes.begin(), arguments.sizes.end());
  const Memory memory(std::max<uint64_t>(16 * kMiB, 2 * largest * arguments.depth));
  TierUnderTest tier(directory + "/tier", arguments.backend, arguments.depth);
  std::mt19937_64 random(11);
  std::vector<Row> rows;
  if (!arguments.churn_only) {
    RawFile raw(directory + "/raw", kCapacity, memory);
    // Once through all segments, so that they are overwritten too.
    tier.Write(1 << 20, arguments.depth, 2 * kCapacity, memory);
    for (const uint64_t size : arguments.sizes) {
      Row write{.name = "write", .size = size}, read{.name = "read", .size = size};
      for (int round = 0; round < arguments.rounds; ++round) {
        // In turns, so that a slow phase of the device meets both.
        const auto measure_raw = [&](bool writes) {
          return raw.Run(writes, size, arguments.depth, arguments.bytes, memory);
        };
        const auto measure_tier = [&](bool writes) {
          const Timer timer;
          if (writes) {
            tier.Write(size, arguments.depth, arguments.bytes, memory);
          } else {
            tier.Read(size, arguments.depth, arguments.bytes, memory, &random);
          }
          return timer.Stop(arguments.bytes / size * size);
        };
        for (const bool writes : {true, false}) {
          Row& row = writes ? write : read;
          if (round % 2 == 0) row.raw.push_back(measure_raw(writes));
          row.tier.push_back(measure_tier(writes));
          if (round % 2 == 1) row.raw.push_back(measure_raw(writes));
        }
      }
      rows.push_back(write);
      rows.push_back(read);
    }
  } else {
    tier.Write(1 << 20, arguments.depth, 2 * kCapacity, memory);
  }

  const Churn churn = MeasureChurn(tier, memory, arguments.depth, &random);

  if (arguments.json) {
    std::printf("{\n  \"io_mode\": \"%s\",\n  \"depth\": %zu,\n  \"rows\": [\n",
                tier.tier().io_mode().c_str(), arguments.depth);
  } else {
    std::printf("io_mode %s, depth %zu, %d rounds\n", tier.tier().io_mode().c_str(),
                arguments.depth, arguments.rounds);
  }
  for (size_t i = 0; i < rows.size(); ++i) PrintRow(rows[i], arguments.json, i + 1 == rows.size());
  std::printf(arguments.json ? "  ],\n  \"churn\": {\"write_amplification\": %.4f, "
                               "\"device_bytes_per_byte\": %.4f, \"least_full\": %.3f}\n}\n"
                             : "churn: write amplification %.4f (all writes of the process: %.4f), "
                               "at least %.3f full\n",
              churn.amplification, churn.device, churn.least_full);
}

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--json") {
      arguments.json = true;
      continue;
    }
    if (flag == "--churn-only") {
      arguments.churn_only = true;
      continue;
    }
    if (i + 1 >= argc) Die("'" + flag + "' is unknown, or needs a value");
    const std::string value = argv[++i];
    if (flag == "--dir") {
      arguments.directory = value;
    } else if (flag == "--depth") {
      arguments.depth = std::clamp<size_t>(std::strtoull(value.c_str(), nullptr, 10), 1, 64);
    } else if (flag == "--rounds") {
      arguments.rounds = std::max(1, std::atoi(value.c_str()));
    } else if (flag == "--mib") {
      arguments.bytes = std::max<uint64_t>(64, std::strtoull(value.c_str(), nullptr, 10)) * kMiB;
    } else if (flag == "--backend") {
      arguments.backend = value;
    } else if (flag == "--sizes") {
      arguments.sizes.clear();
      for (size_t at = 0; at < value.size();) {
        const size_t end = std::min(value.find(',', at), value.size());
        const uint64_t size = std::strtoull(value.substr(at, end - at).c_str(), nullptr, 10);
        if (size == 0 || size % 4096 != 0 || size > 32 * kMiB)
          Die("'--sizes': expected multiples of 4096 up to 32 MiB");
        arguments.sizes.push_back(size);
        at = end + 1;
      }
      if (arguments.sizes.empty()) Die("'--sizes': got none");
    } else {
      Die("'" + flag + "' is unknown");
    }
  }
  return arguments;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  cairn::log::Configure({.level = cairn::log::Level::kWarn});
  cairn::Run(cairn::Parse(argc, argv));
  return 0;
}
