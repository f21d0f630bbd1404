#pragma once
// A node's end of one same-node session that does what a test tells it. Keeps parts in one segment,
// and in one chunk of a GPU, which is memory of the host here; knows no engine, no gRPC.

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "common/concurrency/mutex.h"
#include "gtest/gtest.h"
#include "protocol/shm/decode.h"
#include "protocol/shm/ring.h"
#include "protocol/shm/socket.h"

namespace cairn::client::testing {

class LocalNode {
 public:
  static constexpr uint64_t kSegmentBytes = 8 << 20;
  static constexpr uint32_t kSegment = 7;
  static constexpr uint32_t kChunk = 7;  // Chunks and segments may have the same ids.
  static constexpr char kUuid[] = "GPU-00000000-0000-0000-0000-000000000001";
  static constexpr int kSealFutureWrite = 0x0010;  // F_SEAL_FUTURE_WRITE.

  struct Script {
    bool hang = false;          // Takes submissions, answers none.
    uint64_t epoch = 5;         // In Welcome.
    uint32_t welcome_code = 0;  // Refuses.
    bool announce = true;       // Sends Segments before its first answer.
    bool seal = true;           // The seal of the segment against shrinking.
    // The seal of the segment against writing: fill it with Keep.
    bool frozen = false;
    bool no_room = false;              // Every grant is RESOURCE_EXHAUSTED.
    int pending = 0;                   // Locates that answer kPending before the parts are there.
    bool elsewhere = false;            // All places are kElsewhere.
    bool has_chunks = true;            // Welcome names the size of chunks.
    bool announce_chunk = false;       // Sends Chunks before its first answer.
    std::string chunk_device = kUuid;  // In Chunks.
    uint32_t places_per_answer = 1u << 20;
    shm::RingShape shape{.entries = 16, .scratch_bytes = 64 << 10};
    // Last word on an answer and the bytes of its output.
    std::function<void(const shm::Submission&, shm::Completion*, std::span<std::byte> output)>
        mangle = {};
  };

  LocalNode() : LocalNode(Script()) {}
  explicit LocalNode(Script script) : script_(std::move(script)) {
    static std::atomic<int> counter{0};
    path_ = ::testing::TempDir() + "/cairn-local-" + std::to_string(getpid()) + "-" +
            std::to_string(counter++);
    listener_ = *shm::Listen(path_, 0600);
    segment_fd_ = shm::Descriptor(memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    CAIRN_CHECK(ftruncate(segment_fd_.get(), kSegmentBytes) == 0);
    if (script_.seal) CAIRN_CHECK(fcntl(segment_fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    base_ = static_cast<std::byte*>(
        mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment_fd_.get(), 0));
    if (script_.frozen) {
      CAIRN_CHECK(fcntl(segment_fd_.get(), F_ADD_SEALS, kSealFutureWrite) == 0);
    }
    chunk_fd_ = shm::Descriptor(memfd_create("chunk", MFD_CLOEXEC));
    CAIRN_CHECK(ftruncate(chunk_fd_.get(), kSegmentBytes) == 0);
    chunk_base_ = static_cast<std::byte*>(
        mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED, chunk_fd_.get(), 0));
    thread_ = std::thread([this] { Run(); });
  }
  ~LocalNode() {
    stop_ = true;
    thread_.join();
    munmap(base_, kSegmentBytes);
    munmap(chunk_base_, kSegmentBytes);
    unlink(path_.c_str());
  }

  const std::string& path() const { return path_; }
  void Set(const std::function<void(Script&)>& change) {
    MutexLock lock(mu_);
    change(script_);
  }
  // As if the process died: the socket is closed, nothing is answered any more.
  void HangUp() { hang_up_ = true; }

  struct Counts {
    size_t leases = 0, reservations = 0, parts = 0, reports = 0, submissions = 0, sessions = 0,
           doorbells = 0, devices = 0;
  };
  Counts counts() const {
    MutexLock lock(mu_);
    return counts_;
  }
  // Waits until the counts are as wanted; false after a minute.
  bool WaitFor(const std::function<bool(const Counts&)>& wanted) const {
    MutexLock lock(mu_);
    return changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + std::chrono::seconds(60),
                              [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return wanted(counts_); });
  }
  // Changes a byte of the block's part.
  void Damage(const BlockKey& key, uint64_t at) {
    MutexLock lock(mu_);
    const Stored& stored = parts_.at(key);
    (stored.on_device ? chunk_base_ : base_)[stored.offset + at] ^= std::byte{1};
  }
  // Stores a part by itself, as one that came over the network.
  void Keep(const BlockKey& key, const format::PartRect& rect, std::span<const std::byte> bytes) {
    MutexLock lock(mu_);
    CAIRN_CHECK(used_ + bytes.size() <= kSegmentBytes);
    std::memcpy(base_ + used_, bytes.data(), bytes.size());
    parts_[key] = {used_, static_cast<uint32_t>(bytes.size()), rect, true};
    used_ += (bytes.size() + 4095) / 4096 * 4096;
  }
  // Stores a part in the chunk.
  void KeepOnDevice(const BlockKey& key, const format::PartRect& rect,
                    std::span<const std::byte> bytes) {
    MutexLock lock(mu_);
    CAIRN_CHECK(chunk_used_ + bytes.size() <= kSegmentBytes);
    std::memcpy(chunk_base_ + chunk_used_, bytes.data(), bytes.size());
    parts_[key] = {chunk_used_, static_cast<uint32_t>(bytes.size()), rect, true, true};
    chunk_used_ += (bytes.size() + 4095) / 4096 * 4096;
  }
  // Changes every byte of the segment; the second time back.
  void Scribble() {
    MutexLock lock(mu_);
    for (uint64_t at = 0; at < used_; ++at) base_[at] ^= std::byte{0x40};
  }

 private:
  struct Stored {
    uint64_t offset = 0;
    uint32_t bytes = 0;
    format::PartRect rect;
    bool committed = false;
    bool on_device = false;
  };

  void Run() {
    while (!stop_) {
      pollfd wait{listener_.get(), POLLIN, 0};
      if (poll(&wait, 1, 5) <= 0) continue;
      shm::Descriptor socket(
          accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      hang_up_ = false;
      if (socket.valid()) Serve(socket.get());
    }
  }

  void Serve(int socket) {
    auto hello =
        shm::ReceiveBy(socket, std::chrono::steady_clock::now() + std::chrono::seconds(60));
    if (!hello.ok() || !shm::DecodeHello(hello->message).ok()) return;
    Script script;
    {
      MutexLock lock(mu_);
      script = script_;
    }
    shm::Welcome welcome;
    welcome.header.type = static_cast<uint16_t>(shm::MessageType::kWelcome);
    welcome.code = script.welcome_code;
    welcome.entries = script.shape.entries;
    welcome.scratch_bytes = script.shape.scratch_bytes;
    welcome.max_part_bytes = 1 << 20;
    welcome.node_epoch = script.epoch;
    if (script.has_chunks) welcome.chunk_bytes = kSegmentBytes;
    int fd = -1;
    auto memory = shm::RingMemory::Create(script.shape, &fd);
    const shm::Descriptor ring_fd(fd);
    const int fds[] = {fd};
    if (welcome.code != 0) {
      (void)shm::Send(socket, shm::AsBytes(welcome));
      return;
    }
    (void)shm::Send(socket, shm::AsBytes(welcome), fds);
    {
      MutexLock lock(mu_);
      ++counts_.sessions;
      changed_.NotifyAll();
    }
    shm::NodeRing ring(std::move(*memory));
    bool announced = !script.announce;
    while (!stop_ && !hang_up_) {
      if (!ring.GoToSleep()) {
        pollfd wait{socket, POLLIN, 0};
        poll(&wait, 1, 2);
        ring.WakeUp();
        auto message = shm::Receive(socket);
        if (message.ok() && message->message.empty()) return;
        if (message.ok()) Count(message->message);
      }
      shm::Submission s;
      while (ring.TakeOne(&s) == shm::NodeRing::Take::kOne) {
        {
          MutexLock lock(mu_);
          ++counts_.submissions;
          changed_.NotifyAll();
        }
        bool hang = true;
        while (hang && !stop_ && !hang_up_) {
          MutexLock lock(mu_);
          hang = script_.hang;
        }
        if (hang) return;
        if (!announced) {
          announced = true;
          Announce(socket);
        }
        shm::Completion c = Answer(s, ring.scratch());
        MutexLock lock(mu_);
        if (script_.mangle) {
          script_.mangle(s, &c, ring.scratch().subspan(s.output.offset, s.output.bytes));
        }
        changed_.NotifyAll();
        ring.Complete(c);
        ring.Publish();
      }
    }
  }

  void Count(std::span<const std::byte> message) {
    MutexLock lock(mu_);
    if (shm::DecodeDevices(message).ok()) {
      ++counts_.devices;
    } else {
      ++counts_.doorbells;
    }
    changed_.NotifyAll();
  }

  void Announce(int socket) {
    MutexLock lock(mu_);
    if (script_.announce_chunk) {
      shm::Chunks chunks;
      chunks.header.type = static_cast<uint16_t>(shm::MessageType::kChunks);
      chunks.count = 1;
      chunks.entries[0].id = kChunk;
      chunks.entries[0].bytes = kSegmentBytes;
      shm::SetText(chunks.entries[0].device.uuid, script_.chunk_device);
      const int fds[] = {chunk_fd_.get()};
      (void)shm::Send(socket, shm::AsBytes(chunks), fds);
    }
    shm::Segments segments;
    segments.header.type = static_cast<uint16_t>(shm::MessageType::kSegments);
    segments.count = 1;
    segments.entries[0] = {kSegment, script_.frozen ? 0u : shm::kWritable, kSegmentBytes};
    const int fds[] = {segment_fd_.get()};
    (void)shm::Send(socket, shm::AsBytes(segments), fds);
  }

  template <typename T>
  std::vector<T> Inputs(const shm::Submission& s, std::span<const std::byte> scratch) {
    std::vector<T> in(s.input.bytes / sizeof(T));
    if (!in.empty()) std::memcpy(in.data(), scratch.data() + s.input.offset, in.size() * sizeof(T));
    return in;
  }

  shm::PlaceEntry PlaceOf(uint32_t block, const Stored& stored, bool pending) {
    shm::PlaceEntry place;
    place.block = block;
    place.tier = pending ? 2 : 1;
    place.layer_begin = stored.rect.layer_begin;
    place.layer_end = stored.rect.layer_end;
    place.head_begin = stored.rect.head_begin;
    place.head_end = stored.rect.head_end;
    place.state = static_cast<uint8_t>(script_.elsewhere ? shm::PlaceState::kElsewhere
                                       : pending         ? shm::PlaceState::kPending
                                                         : shm::PlaceState::kHere);
    if (place.state != 0) return place;
    place.segment = stored.on_device ? kChunk : kSegment;
    if (stored.on_device) {
      place.tier = 3;
      place.flags = shm::kOnDevice;
    }
    place.offset = stored.offset;
    place.bytes = stored.bytes;
    return place;
  }

  // Writes what fits; returns the blocks.
  uint32_t Places(const std::vector<BlockKey>& keys, uint32_t begin, uint32_t end,
                  const shm::Submission& s, std::span<std::byte> scratch, shm::Completion* c) {
    const bool pending = script_.pending > 0;
    if (static_cast<shm::Op>(s.op) == shm::Op::kLocate && script_.pending > 0) --script_.pending;
    uint32_t block = begin;
    for (; block < end; ++block) {
      if ((c->count + 1) * sizeof(shm::PlaceEntry) > s.output.bytes ||
          c->count >= script_.places_per_answer) {
        break;
      }
      const shm::PlaceEntry place = PlaceOf(block, parts_.at(keys[block]), pending);
      std::memcpy(scratch.data() + s.output.offset + c->count * sizeof(place), &place,
                  sizeof(place));
      ++c->count;
    }
    return block - begin;
  }

  shm::Completion Answer(const shm::Submission& s, std::span<std::byte> scratch) {
    MutexLock lock(mu_);
    shm::Completion c;
    c.cookie = s.cookie;
    c.op = s.op;
    shm::LocateBody body;
    std::memcpy(&body, s.body, sizeof(body));
    switch (static_cast<shm::Op>(s.op)) {
      case shm::Op::kMatch: {
        std::vector<BlockKey> keys = Inputs<BlockKey>(s, scratch);
        while (c.matched < keys.size() && Has(keys[c.matched])) {
          c.bytes += parts_.at(keys[c.matched]).bytes;
          ++c.matched;
        }
        c.miss_reason = c.matched < keys.size() ? 1 : 0;
        if (c.matched == 0 || (s.flags & shm::kNoLease) != 0) break;
        c.lease = ++last_id_;
        keys.resize(c.matched);
        c.located = Places(keys, 0, c.matched, s, scratch, &c);
        leases_[c.lease] = std::move(keys);
        break;
      }
      case shm::Op::kExists:
        for (const BlockKey& key : Inputs<BlockKey>(s, scratch)) {
          scratch[s.output.offset + c.count++] = std::byte{Has(key)};
        }
        break;
      case shm::Op::kLocate: {
        const auto it = leases_.find(body.lease);
        if (it == leases_.end()) {
          c.code = 5;
          break;
        }
        c.located = Places(it->second, body.block_begin, body.block_end, s, scratch, &c);
        break;
      }
      case shm::Op::kRelease:
        for (const uint64_t id : Inputs<uint64_t>(s, scratch)) leases_.erase(id);
        break;
      case shm::Op::kRenew:
        c.code = leases_.contains(body.lease) ? 0 : 5;
        break;
      case shm::Op::kReserve:
        for (const auto& entry : Inputs<shm::ReserveEntry>(s, scratch)) {
          const shm::Grant grant = Reserve(entry);
          std::memcpy(scratch.data() + s.output.offset + c.count++ * sizeof(grant), &grant,
                      sizeof(grant));
        }
        break;
      case shm::Op::kCommit:
        for (const uint64_t id : Inputs<uint64_t>(s, scratch)) {
          scratch[s.output.offset + c.count++] = static_cast<std::byte>(Commit(id));
        }
        break;
      case shm::Op::kAbort:
        for (const uint64_t id : Inputs<uint64_t>(s, scratch)) {
          const auto it = reservations_.find(id);
          if (it == reservations_.end()) continue;
          parts_.erase(it->second);
          reservations_.erase(it);
        }
        break;
      case shm::Op::kReport:
        ++counts_.reports;
        break;
      case shm::Op::kMatchPools:
        c.code = 12;  // UNIMPLEMENTED: its namespaces have no pools.
        break;
    }
    counts_.leases = leases_.size();
    counts_.reservations = reservations_.size();
    counts_.parts = parts_.size();
    return c;
  }

  bool Has(const BlockKey& key) const {
    const auto it = parts_.find(key);
    return it != parts_.end() && it->second.committed;
  }

  shm::Grant Reserve(const shm::ReserveEntry& entry) {
    shm::Grant grant;
    BlockKey key;
    std::memcpy(key.bytes.data(), entry.key, sizeof(entry.key));
    if (script_.no_room || used_ + entry.bytes > kSegmentBytes) {
      grant.code = 8;
    } else if (parts_.contains(key)) {
      grant.code = 6;
    } else {
      grant.reservation = ++last_id_;
      grant.segment = kSegment;
      grant.offset = used_;
      parts_[key] = {used_,
                     static_cast<uint32_t>(entry.bytes),
                     {entry.layer_begin, entry.layer_end, entry.head_begin, entry.head_end},
                     false};
      reservations_[grant.reservation] = key;
      used_ += (entry.bytes + 4095) / 4096 * 4096;
    }
    return grant;
  }

  uint8_t Commit(uint64_t id) {
    const auto it = reservations_.find(id);
    if (it == reservations_.end()) return 5;
    Stored& stored = parts_.at(it->second);
    reservations_.erase(it);
    stored.committed = format::VerifyPart({base_ + stored.offset, stored.bytes}).ok();
    return stored.committed ? 0 : 15;
  }

  std::string path_;
  shm::Descriptor listener_, segment_fd_, chunk_fd_;
  std::byte* base_ = nullptr;
  std::byte* chunk_base_ = nullptr;
  std::atomic<bool> stop_{false}, hang_up_{false};
  mutable Mutex mu_;
  mutable CondVar changed_;
  Script script_ ABSL_GUARDED_BY(mu_);
  Counts counts_ ABSL_GUARDED_BY(mu_);
  std::map<BlockKey, Stored> parts_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, BlockKey> reservations_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, std::vector<BlockKey>> leases_ ABSL_GUARDED_BY(mu_);
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t used_ ABSL_GUARDED_BY(mu_) = 0, chunk_used_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread thread_;
};

}  // namespace cairn::client::testing
