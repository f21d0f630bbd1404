#include "tests/support/fake_nccl/meeting.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <new>
#include <random>
#include <vector>

namespace cairn::link::fake {
namespace {

constexpr size_t kRing = 128 << 10;

// Names that nobody may have entered, for the end of the process.
struct Created {
  std::mutex mu;
  std::vector<std::string> names;
  ~Created() {
    for (const std::string& name : names) shm_unlink(name.c_str());
  }
};
Created& TheCreated() {
  static Created created;
  return created;
}

// Bytes of one direction.
struct Ring {
  std::atomic<uint64_t> written{0}, taken{0};
  unsigned char bytes[kRing];
};

}  // namespace

struct Meeting::Shared {
  std::atomic<pid_t> pid[2] = {0, 0};
  std::atomic<uint32_t> windows[2] = {0, 0};
  Ring from[2];
};

std::string Meeting::Create() {
  std::random_device random;
  for (int i = 0; i < 16; ++i) {
    const std::string name =
        "/cairn-fake-nccl-" + std::to_string(random()) + std::to_string(random());
    const int descriptor = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (descriptor < 0) continue;
    void* memory = MAP_FAILED;
    if (ftruncate(descriptor, sizeof(Shared)) == 0) {
      memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    }
    close(descriptor);
    if (memory == MAP_FAILED) return "";
    new (memory) Shared;
    munmap(memory, sizeof(Shared));
    std::lock_guard lock(TheCreated().mu);
    TheCreated().names.push_back(name);
    return name;
  }
  return "";
}

std::unique_ptr<Meeting> Meeting::Enter(const std::string& name, int rank) {
  const int descriptor = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (descriptor < 0) return nullptr;
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  close(descriptor);
  if (memory == MAP_FAILED) return nullptr;
  std::unique_ptr<Meeting> meeting(new Meeting(static_cast<Shared*>(memory), rank, name));
  meeting->shared_->pid[rank] = getpid();
  // Nobody else may come, and nothing is left when a process is killed.
  if (meeting->both()) shm_unlink(name.c_str());
  return meeting;
}

Meeting::~Meeting() {
  if (!both()) shm_unlink(name_.c_str());
  munmap(shared_, sizeof(Shared));
}

bool Meeting::both() const { return shared_->pid[0] != 0 && shared_->pid[1] != 0; }

bool Meeting::peer_lives() const {
  const pid_t peer = shared_->pid[1 - rank_];
  return peer == 0 || kill(peer, 0) == 0 || errno != ESRCH;
}

void Meeting::SetWindows(uint32_t count) { shared_->windows[rank_] = count; }

uint32_t Meeting::PeerWindows() const { return shared_->windows[1 - rank_]; }

size_t Meeting::Room() const {
  const Ring& ring = shared_->from[rank_];
  return kRing - (ring.written - ring.taken);
}

size_t Meeting::Readable() const {
  const Ring& ring = shared_->from[1 - rank_];
  return ring.written - ring.taken;
}

size_t Meeting::Write(const void* from, size_t bytes) {
  Ring& ring = shared_->from[rank_];
  size_t done = 0;
  while (done < bytes && Room() > 0) {
    const size_t at = ring.written % kRing;
    const size_t count = std::min({bytes - done, Room(), kRing - at});
    std::memcpy(ring.bytes + at, static_cast<const unsigned char*>(from) + done, count);
    ring.written += count;
    done += count;
  }
  return done;
}

size_t Meeting::Read(void* to, size_t bytes) {
  Ring& ring = shared_->from[1 - rank_];
  size_t done = 0;
  while (done < bytes && Readable() > 0) {
    const size_t at = ring.taken % kRing;
    const size_t count = std::min({bytes - done, Readable(), kRing - at});
    std::memcpy(static_cast<unsigned char*>(to) + done, ring.bytes + at, count);
    ring.taken += count;
    done += count;
  }
  return done;
}

}  // namespace cairn::link::fake
