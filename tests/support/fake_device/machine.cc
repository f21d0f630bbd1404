#include "tests/support/fake_device/machine.h"

#include <dlfcn.h>
#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/support/fake_device/host_mappings.h"
#include "tests/support/fake_device/table.h"

namespace cairn::device::fake {
namespace {

constexpr uint32_t kNoDevice = UINT32_MAX;
constexpr char kWork[] = "work";

void* Pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// Where the work of a stream stands.
StreamHandle* Own(StreamHandle* stream) {
  return stream->lender == nullptr ? stream : stream->lender;
}

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
    return Say(Code::kInvalid, "CAIRN_FAKE_DEVICE: '" + bad_option_ + "' is not understood",
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

// ---- Streams and events ----

Code Machine::CreateStream(uint32_t device, StreamHandle** stream, Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("create_stream", device, failure);
  if (code != Code::kOk) return code;
  *stream = streams_.emplace_back(std::make_unique<StreamHandle>()).get();
  (*stream)->device = device;
  (*stream)->line = order_.NewLine();
  return Code::kOk;
}

Code Machine::BorrowStream(uint32_t device, void* native, StreamHandle** stream, Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("borrow_stream", device, failure);
  if (code != Code::kOk) return code;
  const auto lender = std::find_if(streams_.begin(), streams_.end(), [native](const auto& entry) {
    return entry.get() == native && entry->lender == nullptr;
  });
  if (lender == streams_.end() || (*lender)->device != device) {
    return Say(Code::kInvalid, "the device has no such stream", failure);
  }
  StreamHandle* const owner = lender->get();
  *stream = streams_.emplace_back(std::make_unique<StreamHandle>()).get();
  (*stream)->device = device;
  (*stream)->lender = owner;
  return Code::kOk;
}

void Machine::DestroyStream(StreamHandle* stream) {
  Lock lock(mu_);
  for (const auto& entry : streams_) {
    if (entry->lender == stream) {
      Report("stream " + std::to_string(stream->line) + " is destroyed while it is borrowed");
    }
  }
  if (!stream->work.empty() && !lost_[stream->device]) {
    Report("stream " + std::to_string(stream->line) + " is destroyed before '" +
           stream->work.front().what + "' has happened");
  }
  Drop(stream);
  streams_.remove_if([stream](const auto& entry) { return entry.get() == stream; });
}

void Machine::Drop(StreamHandle* stream) {
  for (StreamHandle::Work& work : stream->work) {
    if (work.drop) work.drop();
  }
  stream->work.clear();
}

Code Machine::CreateEvent(uint32_t device, EventHandle** event, Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("create_event", device, failure);
  if (code != Code::kOk) return code;
  *event = events_.emplace_back(std::make_unique<EventHandle>()).get();
  (*event)->device = device;
  return Code::kOk;
}

void Machine::DestroyEvent(EventHandle* event) {
  Lock lock(mu_);
  events_.remove_if([event](const auto& entry) { return entry.get() == event; });
}

Code Machine::Record(StreamHandle* stream, EventHandle* event, Failure* failure) {
  Lock lock(mu_);
  stream = Own(stream);
  const Code code = Enter("record", stream->device, failure);
  if (code != Code::kOk) return code;
  order_.Tick(stream->line);
  event->recorded = std::make_shared<Recorded>(Recorded{order_.Now(stream->line)});
  Push(stream, {.what = "record", .records = event->recorded});
  return Code::kOk;
}

Code Machine::Wait(StreamHandle* stream, EventHandle* event, Failure* failure) {
  Lock lock(mu_);
  stream = Own(stream);
  const Code code = Enter("wait", stream->device, failure);
  if (code != Code::kOk) return code;
  if (event->recorded == nullptr) {
    Report("stream " + std::to_string(stream->line) +
           " waits for an event that was never recorded: that waits for nothing");
    return Code::kOk;
  }
  order_.Learn(stream->line, event->recorded->clock);
  Push(stream, {.what = "wait", .waits = event->recorded});
  return Code::kOk;
}

Code Machine::Query(EventHandle* event, Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("query", event->device, failure);
  if (code != Code::kOk) return code;
  if (event->recorded == nullptr) {
    Report("the host asks for an event that was never recorded");
    return Code::kOk;
  }
  if (!event->recorded->done) Step();
  if (lost_[event->device]) return Enter("query", event->device, failure);
  if (!event->recorded->done) return Code::kNotReady;
  order_.Learn(kHost, event->recorded->clock);
  return Say(event->recorded->code, "a piece of work failed before the event", failure);
}

Code Machine::Synchronize(EventHandle* event, Failure* failure) {
  for (;;) {
    const Code code = Query(event, failure);
    if (code != Code::kNotReady) return code;
    if (!Step()) std::this_thread::yield();
  }
}

bool Machine::CanGo(const StreamHandle& stream) const {
  if (stream.work.empty() || lost_[stream.device]) return false;
  const StreamHandle::Work& work = stream.work.front();
  if (work.waits != nullptr && !work.waits->done) return false;
  if (work.ready && !work.ready()) return false;
  return options_.bytes_per_second == 0 ||
         std::chrono::steady_clock::now() >= busy_until_[stream.device];
}

bool Machine::Step() {
  Lock lock(mu_);
  std::vector<StreamHandle*> can;
  for (const auto& stream : streams_) {
    if (CanGo(*stream)) can.push_back(stream.get());
  }
  if (can.empty()) return false;
  RunOne(can[rng_() % can.size()]);
  return true;
}

void Machine::RunOne(StreamHandle* stream) {
  StreamHandle::Work work = std::move(stream->work.front());
  stream->work.pop_front();
  if (work.records != nullptr) {
    work.records->code = std::exchange(stream->failed, Code::kOk);
    work.records->done = true;
  }
  if (work.run) {
    Failure failure;
    const Code code = Enter(kWork, stream->device, &failure);
    if (code == Code::kOk) work.run();
    if (code != Code::kOk && stream->failed == Code::kOk) stream->failed = code;
  }
  if (options_.bytes_per_second > 0) {
    const auto now = std::chrono::steady_clock::now();
    busy_until_[stream->device] =
        std::max(now, busy_until_[stream->device]) +
        std::chrono::nanoseconds(work.bytes * 1'000'000'000 / options_.bytes_per_second);
  }
  if (work.drop) work.drop();
}

void Machine::Push(StreamHandle* stream, StreamHandle::Work work) {
  stream->work.push_back(std::move(work));
  while (!options_.late && Step()) {
  }
}

// ---- Work ----

bool Machine::Check(const StreamHandle& stream, const std::string& what, const Range& range,
                    bool writes) {
  const Memories::Place place = memories_->Find(range.address, range.bytes);
  const std::string named = "'" + what + "' of stream " + std::to_string(stream.line);
  switch (place.kind) {
    case Memories::Kind::kDevice:
      if (place.device != stream.device) {
        Report(named + " uses memory of another device");
        return false;
      }
      break;
    case Memories::Kind::kReleased:
      Report(named + " uses memory that was given back");
      return false;
    case Memories::Kind::kBeyond:
      Report(named + " goes beyond the memory where it begins");
      return false;
    case Memories::Kind::kStale:
      Report(named + " uses a registration whose memory has changed since");
      return false;
    case Memories::Kind::kReadOnly:
      if (writes) {
        Report(named + " writes memory that was registered to be read");
        return false;
      }
      break;
    case Memories::Kind::kPageable:
      ++stats_.pageable_copies;
      break;
    case Memories::Kind::kPinned:
    case Memories::Kind::kRegistered:
      break;
  }
  if (const auto wrong = order_.Access(stream.line, what, range.address, range.bytes, writes)) {
    Report(*wrong);
  }
  return true;
}

bool Machine::CheckAll(const StreamHandle& stream, const std::string& what,
                       std::span<const Range> reads, std::span<const Range> writes) {
  bool sound = true;
  for (const Range& range : reads) sound &= Check(stream, what, range, /*writes=*/false);
  for (const Range& range : writes) sound &= Check(stream, what, range, /*writes=*/true);
  return sound;
}

Code Machine::Copy(StreamHandle* stream, const char* what, std::span<const CopyTask> tasks,
                   Failure* failure) {
  Lock lock(mu_);
  stream = Own(stream);
  const Code code = Enter("copy", stream->device, failure);
  if (code != Code::kOk) return code;
  order_.Tick(stream->line);
  std::vector<CopyTask> sound;
  uint64_t bytes = 0;
  for (const CopyTask& task : tasks) {
    const bool from = Check(*stream, what, {task.from, task.bytes}, /*writes=*/false);
    const bool to = Check(*stream, what, {task.to, task.bytes}, /*writes=*/true);
    if (from && to) sound.push_back(task);
    bytes += task.bytes;
  }
  stats_.copies += tasks.size();
  stats_.copied_bytes += bytes;
  // Tasks of one call happen in any order.
  std::shuffle(sound.begin(), sound.end(), rng_);
  Push(stream, {.what = what,
                .run =
                    [sound = std::move(sound)] {
                      for (const CopyTask& task : sound) {
                        std::memcpy(Pointer(task.to), Pointer(task.from), task.bytes);
                      }
                    },
                .bytes = bytes});
  return Code::kOk;
}

Code Machine::Fill(StreamHandle* stream, const char* what, uint64_t address, uint8_t value,
                   uint64_t bytes, Failure* failure) {
  Lock lock(mu_);
  stream = Own(stream);
  const Code code = Enter("fill", stream->device, failure);
  if (code != Code::kOk) return code;
  order_.Tick(stream->line);
  if (!Check(*stream, what, {address, bytes}, /*writes=*/true)) return Code::kOk;
  Push(stream,
       {.what = what, .run = [=] { std::memset(Pointer(address), value, bytes); }, .bytes = bytes});
  return Code::kOk;
}

Code Machine::Issue(StreamHandle* stream, const char* what, std::span<const Range> reads,
                    std::span<const Range> writes, std::function<void()> run,
                    std::function<void()> drop, std::function<bool()> ready) {
  Lock lock(mu_);
  stream = Own(stream);
  Failure failure;
  const Code code = Enter("issue", stream->device, &failure);
  if (code != Code::kOk) {
    if (drop) drop();
    return code;
  }
  if (stream->capture != nullptr) {
    // A launch that waits for something outside cannot be noted.
    stream->spoilt |= ready != nullptr;
    const auto noted = std::make_shared<Noted>();
    noted->what = what;
    noted->reads.assign(reads.begin(), reads.end());
    noted->writes.assign(writes.begin(), writes.end());
    noted->run = std::move(run);
    noted->drop = std::move(drop);
    stream->capture->noted.push_back(noted);
    return Code::kOk;
  }
  order_.Tick(stream->line);
  StreamHandle::Work work{.what = what, .drop = std::move(drop)};
  if (CheckAll(*stream, what, reads, writes)) {
    work.run = std::move(run);
    work.ready = std::move(ready);
  }
  Push(stream, std::move(work));
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
