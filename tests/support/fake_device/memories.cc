#include "tests/support/fake_device/memories.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "tests/support/fake_device/host_mappings.h"

namespace cairn::device::fake {
namespace {

constexpr int kFresh = 0xa5;
constexpr int kPoison = 0xdb;

// The entry of the map whose range holds the address, or end.
template <typename Map, typename BytesOf>
auto FindIn(const Map& map, uint64_t address, BytesOf bytes_of) {
  auto it = map.upper_bound(address);
  if (it == map.begin()) return map.end();
  --it;
  return address < it->first + bytes_of(it->second) ? it : map.end();
}

}  // namespace

Memories::~Memories() {
  for (const auto& [address, memory] : memories_) {
    munmap(reinterpret_cast<void*>(address), memory->bytes);
    close(memory->descriptor);
  }
  for (const auto& [address, bytes] : released_) munmap(reinterpret_cast<void*>(address), bytes);
  for (const auto& [address, bytes] : pinned_) munmap(reinterpret_cast<void*>(address), bytes);
}

MemoryHandle* Memories::Keep(MemoryHandle memory) {
  void* const at =
      mmap(nullptr, memory.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.descriptor, 0);
  if (at == MAP_FAILED) {
    close(memory.descriptor);
    return nullptr;
  }
  memory.address = reinterpret_cast<uint64_t>(at);
  return (memories_[memory.address] = std::make_unique<MemoryHandle>(memory)).get();
}

MemoryHandle* Memories::Allocate(uint32_t device, uint64_t bytes, bool exportable) {
  const int descriptor = memfd_create("cairn-fake-device", MFD_CLOEXEC);
  if (descriptor < 0) return nullptr;
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    close(descriptor);
    return nullptr;
  }
  MemoryHandle* const memory =
      Keep({.device = device, .descriptor = descriptor, .bytes = bytes, .exportable = exportable});
  if (memory != nullptr) std::memset(reinterpret_cast<void*>(memory->address), kFresh, bytes);
  return memory;
}

MemoryHandle* Memories::Import(uint32_t device, int descriptor, uint64_t bytes) {
  struct stat file {};
  if (fstat(descriptor, &file) != 0 || static_cast<uint64_t>(file.st_size) != bytes) return nullptr;
  const int own = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return nullptr;
  return Keep({.device = device, .descriptor = own, .bytes = bytes, .imported = true});
}

void Memories::Release(MemoryHandle* memory) {
  const uint64_t address = memory->address, bytes = memory->bytes;
  void* const at = reinterpret_cast<void*>(address);
  if (!memory->imported && !memory->exported) std::memset(at, kPoison, bytes);
  close(memory->descriptor);
  // The addresses stay taken, and touching them ends the process.
  mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  memories_.erase(address);
  released_[address] = bytes;
}

uint64_t Memories::BytesOf(uint32_t device) const {
  uint64_t bytes = 0;
  for (const auto& [address, memory] : memories_) {
    if (memory->device == device && !memory->imported) bytes += memory->bytes;
  }
  return bytes;
}

void* Memories::AllocateHost(uint64_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  pinned_[reinterpret_cast<uint64_t>(at)] = bytes;
  return at;
}

std::optional<uint64_t> Memories::ReleaseHost(void* address) {
  const auto it = pinned_.find(reinterpret_cast<uint64_t>(address));
  if (it == pinned_.end()) return std::nullopt;
  const uint64_t bytes = it->second;
  munmap(address, bytes);
  pinned_.erase(it);
  return bytes;
}

void Memories::Register(uint64_t address, uint64_t bytes, bool read_only) {
  registered_[address] = {bytes, read_only, MappingAt(address)};
}

std::optional<uint64_t> Memories::Unregister(uint64_t address) {
  const auto it = registered_.find(address);
  if (it == registered_.end()) return std::nullopt;
  const uint64_t bytes = it->second.bytes;
  registered_.erase(it);
  return bytes;
}

bool Memories::IsRegistered(uint64_t address, uint64_t bytes) const {
  const auto it = registered_.lower_bound(address);
  if (it != registered_.end() && it->first < address + bytes) return true;
  return FindIn(registered_, address, [](const Registered& r) { return r.bytes; }) !=
         registered_.end();
}

uint64_t Memories::PinnedBytes() const {
  uint64_t bytes = 0;
  for (const auto& [address, size] : pinned_) bytes += size;
  for (const auto& [address, registered] : registered_) bytes += registered.bytes;
  return bytes;
}

Memories::Place Memories::Find(uint64_t address, uint64_t bytes) const {
  const auto inside = [&](uint64_t begin, uint64_t size) {
    return bytes <= size && address - begin <= size - bytes;
  };
  const auto memory =
      FindIn(memories_, address, [](const std::unique_ptr<MemoryHandle>& m) { return m->bytes; });
  if (memory != memories_.end()) {
    const bool whole = inside(memory->first, memory->second->bytes);
    return {whole ? Kind::kDevice : Kind::kBeyond, memory->second->device};
  }
  const auto size = [](uint64_t size_of_entry) { return size_of_entry; };
  if (FindIn(released_, address, size) != released_.end()) return {Kind::kReleased};
  const auto pinned = FindIn(pinned_, address, size);
  if (pinned != pinned_.end()) {
    return {inside(pinned->first, pinned->second) ? Kind::kPinned : Kind::kPageable};
  }
  const auto registered = FindIn(registered_, address, [](const Registered& r) { return r.bytes; });
  if (registered == registered_.end() || !inside(registered->first, registered->second.bytes)) {
    return {Kind::kPageable};
  }
  if (MappingAt(registered->first) != registered->second.mapping) return {Kind::kStale};
  return {registered->second.read_only ? Kind::kReadOnly : Kind::kRegistered};
}

}  // namespace cairn::device::fake
