#include "tests/support/fake_device/machine.h"

#include <dlfcn.h>
#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/fake_device/host_mappings.h"
#include "tests/support/fake_device/table.h"

namespace cairn::device::fake {
namespace {

constexpr uint32_t kNoDevice = UINT32_MAX;

}  // namespace

Machine& Machine::Get() {
  static Machine* const machine = new Machine;
  return *machine;
}

Machine::Machine() {
  const char* const text = std::getenv("CAIRN_FAKE_DEVICE");
  const ParsedOptions parsed = ParseOptions(text == nullptr ? "" : text);
  Reset(parsed.options);
  failures_ = parsed.failures;
  bad_option_ = parsed.error;
  kernels_library_ = parsed.kernels;
}

void Machine::Reset(const FakeOptions& options) {
  Lock lock(mu_);
  for (const auto& stream : streams_) Drop(stream.get());
  options_ = options;
  rng_.seed(options.seed);
  failures_.clear();
  lost_.assign(options.devices, false);
  busy_until_.assign(options.devices, {});
  streams_.clear();
  events_.clear();
  graphs_.clear();
  captures_.clear();
  memories_ = std::make_unique<Memories>();
  order_ = AccessOrder();
  kernels_.clear();
  reports_.clear();
  bad_option_.clear();
  stats_ = {};
}

void Machine::Fail(const PlannedFailure& failure) {
  Lock lock(mu_);
  failures_.push_back(failure);
}

void Machine::Lose(uint32_t device) {
  Lock lock(mu_);
  if (device < lost_.size()) lost_[device] = true;
}

bool Machine::AnyLost() const { return std::find(lost_.begin(), lost_.end(), true) != lost_.end(); }

Code Machine::Say(Code code, const std::string& text, Failure* failure) {
  if (code != Code::kOk) std::snprintf(failure->text, sizeof(failure->text), "%s", text.c_str());
  return code;
}

Code Machine::Enter(const char* operation, uint32_t device, Failure* failure) {
  if (device != kNoDevice && device >= options_.devices) {
    return Say(Code::kNotFound, "there is no such device", failure);
  }
  if (const StreamHandle* const stream = SpoiltBy(operation)) {
    return Say(
        Code::kInvalid,
        std::string(operation) + " while stream " + std::to_string(stream->line) + " notes a graph",
        failure);
  }
  for (auto it = failures_.begin(); it != failures_.end(); ++it) {
    if (it->operation != operation) continue;
    if (it->after > 0) {
      --it->after;
      continue;
    }
    const Code code = it->code;
    if (--it->times == 0) failures_.erase(it);
    if (code == Code::kLost && device != kNoDevice) lost_[device] = true;
    return Say(code, std::string("a failure that the test asked for, in '") + operation + "'",
               failure);
  }
  if (device != kNoDevice && lost_[device]) {
    return Say(Code::kLost, "the device is lost: uncorrectable error in its memory", failure);
  }
  return Code::kOk;
}

void Machine::Report(const std::string& text) {
  ++stats_.reports;
  if (options_.print_reports) std::fprintf(stderr, "fake device: %s\n", text.c_str());
  reports_ += text + "\n";
}

std::string Machine::TakeReports() {
  Lock lock(mu_);
  return std::exchange(reports_, {});
}

FakeStats Machine::Stats() {
  Lock lock(mu_);
  FakeStats stats = stats_;
  stats.handles = memories_->handles() + streams_.size() + events_.size() + graphs_.size();
  for (uint32_t device = 0; device < options_.devices; ++device) {
    stats.device_bytes += memories_->BytesOf(device);
  }
  stats.pinned_bytes = memories_->PinnedBytes();
  for (const auto& stream : streams_) stats.work_left += stream->work.size();
  return stats;
}

void Machine::HostAccess(const std::string& what, uint64_t address, uint64_t bytes, bool writes) {
  Lock lock(mu_);
  order_.Tick(kHost);
  if (const auto wrong = order_.Access(kHost, what, address, bytes, writes)) Report(*wrong);
}

void Machine::AddKernels(const std::string& name, uint32_t version, const void* table) {
  Lock lock(mu_);
  kernels_[{name, version}] = table;
}

// ---- The machine and its devices ----

Code Machine::Initialize(Failure* failure) {
  Lock lock(mu_);
  if (!bad_option_.empty()) {
    return Say(Code::kInvalid,
               "CAIRN_FAKE_DEVICE: '" + bad_option_ +
                   "' is not understood, expected seed=, devices=, memory=, granularity=, "
                   "pinned=, rate=, kernels=, fail=, at_once, no_driver, old_driver, no_export, "
                   "no_register or no_read_only",
               failure);
  }
  if (!options_.has_driver) return Say(Code::kNoDriver, "no driver is installed", failure);
  if (options_.old_driver) {
    return Say(Code::kOldDriver, "the driver is of version 1, expected at least 2", failure);
  }
  if (!kernels_library_.empty()) AddKernelsOf(std::exchange(kernels_library_, {}));
  return Enter("initialize", kNoDevice, failure);
}

void Machine::AddKernelsOf(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const add = handle == nullptr ? nullptr : dlsym(handle, kAddFakeKernels);
  if (add == nullptr) return Report("kernels=" + library + ": " + dlerror());
  reinterpret_cast<AddFakeKernels>(add)(FakeControlTable());
}

Code Machine::Count(uint32_t* devices, Failure* failure) {
  Lock lock(mu_);
  *devices = options_.devices;
  return Enter("count", kNoDevice, failure);
}

Code Machine::Facts(uint32_t device, DeviceFacts* facts, Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("facts", device, failure);
  if (code != Code::kOk) return code;
  std::snprintf(facts->name, sizeof(facts->name), "Fake device");
  const char uuid[] = "cairn fake devi";
  std::memcpy(facts->uuid, uuid, 15);
  facts->uuid[15] = static_cast<uint8_t>(device);
  facts->memory_bytes = options_.memory_bytes;
  facts->granularity = options_.granularity;
  facts->flags = (options_.exports ? kExports : 0u) | (options_.registers ? kRegisters : 0u) |
                 (options_.registers_read_only ? kRegistersReadOnly : 0u);
  facts->family_major = 9;
  facts->copy_engines = 2;
  return Code::kOk;
}

Code Machine::Open(uint32_t device, Failure* failure) {
  Lock lock(mu_);
  return Enter("open", device, failure);
}

// ---- Memory ----

Code Machine::Memory(uint32_t device, uint64_t* free_bytes, uint64_t* total_bytes,
                     Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("memory", device, failure);
  if (code != Code::kOk) return code;
  *total_bytes = options_.memory_bytes;
  *free_bytes = options_.memory_bytes - memories_->BytesOf(device);
  return Code::kOk;
}

Code Machine::Allocate(uint32_t device, uint64_t bytes, uint32_t flags, MemoryHandle** memory,
                       uint64_t* address, Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("allocate", device, failure);
  if (code != Code::kOk) return code;
  if (bytes == 0 || bytes % options_.granularity != 0) {
    return Say(Code::kInvalid, "the bytes are no multiple of the granularity", failure);
  }
  if (bytes > options_.memory_bytes - memories_->BytesOf(device)) {
    return Say(Code::kOutOfMemory, "the device has no " + std::to_string(bytes) + " bytes left",
               failure);
  }
  *memory = memories_->Allocate(device, bytes, (flags & kExportable) != 0);
  if (*memory == nullptr) return Say(Code::kOutOfMemory, "no memfd for the memory", failure);
  *address = (*memory)->address;
  return Code::kOk;
}

Code Machine::Export(MemoryHandle* memory, int* descriptor, Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("export_memory", memory->device, failure);
  if (code != Code::kOk) return code;
  if (!memory->exportable || !options_.exports) {
    return Say(Code::kNotSupported, "the memory was not allocated for that", failure);
  }
  *descriptor = fcntl(memory->descriptor, F_DUPFD_CLOEXEC, 0);
  if (*descriptor < 0) return Say(Code::kOther, std::strerror(errno), failure);
  memory->exported = true;
  ++stats_.exported;
  return Code::kOk;
}

Code Machine::Import(uint32_t device, int descriptor, uint64_t bytes, MemoryHandle** memory,
                     uint64_t* address, Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("import_memory", device, failure);
  if (code != Code::kOk) return code;
  *memory = options_.exports ? memories_->Import(device, descriptor, bytes) : nullptr;
  if (*memory == nullptr) {
    return Say(Code::kInvalid, "the descriptor is no memory of this size", failure);
  }
  *address = (*memory)->address;
  return Code::kOk;
}

void Machine::Release(MemoryHandle* memory) {
  Lock lock(mu_);
  (void)SpoiltBy("release_memory");
  if (!lost_[memory->device]) {
    HostAccess("giving memory back", memory->address, memory->bytes, /*writes=*/true);
  }
  order_.Forget(memory->address, memory->bytes);
  memories_->Release(memory);
}

Code Machine::AllocateHost(uint64_t bytes, void** address, Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("allocate_host", kNoDevice, failure);
  if (code != Code::kOk) return code;
  if (memories_->PinnedBytes() + bytes > options_.pinned_bytes) {
    return Say(Code::kRefused, "the machine pins no more memory", failure);
  }
  *address = memories_->AllocateHost(bytes);
  return *address == nullptr ? Say(Code::kOutOfMemory, "no memory", failure) : Code::kOk;
}

void Machine::ReleaseHost(void* address) {
  Lock lock(mu_);
  (void)SpoiltBy("release_host");
  const auto begin = reinterpret_cast<uint64_t>(address);
  const auto bytes = memories_->ReleaseHost(address);
  if (!bytes) return Report("pinned memory that was not allocated is given back");
  // Nothing of a lost device happens any more, and no event says so.
  if (!AnyLost()) HostAccess("giving pinned memory back", begin, *bytes, /*writes=*/true);
  order_.Forget(begin, *bytes);
}

Code Machine::Register(void* address, uint64_t bytes, uint32_t flags, Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("register_host", kNoDevice, failure);
  if (code != Code::kOk) return code;
  const auto begin = reinterpret_cast<uint64_t>(address);
  const bool read_only = (flags & kReadOnly) != 0;
  if (!options_.registers || (read_only && !options_.registers_read_only)) {
    return Say(Code::kNotSupported, "this machine cannot register such memory", failure);
  }
  if (memories_->IsRegistered(begin, bytes)) {
    return Say(Code::kInvalid, "some of the memory is registered already", failure);
  }
  if (MappingAt(begin).empty()) return Say(Code::kInvalid, "nothing is mapped there", failure);
  if (!read_only && !IsWritable(begin)) {
    return Say(Code::kRefused, "the memory cannot be written", failure);
  }
  if (memories_->PinnedBytes() + bytes > options_.pinned_bytes) {
    return Say(Code::kRefused, "the machine pins no more memory", failure);
  }
  memories_->Register(begin, bytes, read_only);
  return Code::kOk;
}

Code Machine::Unregister(void* address, Failure* failure) {
  Lock lock(mu_);
  const auto begin = reinterpret_cast<uint64_t>(address);
  const bool stale = memories_->Find(begin, 1).kind == Memories::Kind::kStale;
  const auto bytes = memories_->Unregister(begin);
  if (!bytes) return Say(Code::kInvalid, "nothing is registered there", failure);
  if (stale) Report("memory whose mapping has changed is unregistered only now");
  if (!AnyLost()) HostAccess("unregistering memory", begin, *bytes, /*writes=*/true);
  order_.Forget(begin, *bytes);
  return Code::kOk;
}

Code Machine::Kernels(uint32_t device, const char* name, uint32_t version, const void** table,
                      Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("kernels", device, failure);
  if (code != Code::kOk) return code;
  const auto it = kernels_.find({name, version});
  if (it != kernels_.end()) {
    *table = it->second;
    return Code::kOk;
  }
  std::string all;
  for (const auto& [key, value] : kernels_) {
    all += (all.empty() ? "" : ", ") + key.first + " " + std::to_string(key.second);
  }
  return Say(Code::kNotFound,
             "no kernels '" + std::string(name) + "' of version " + std::to_string(version) +
                 "; there are: " + (all.empty() ? "none" : all),
             failure);
}

}  // namespace cairn::device::fake
