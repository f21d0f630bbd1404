#pragma once
// The fake devices of this process: memories, streams and events, failures on demand, and the
// reports of what no wait orders. Thread-safe; one lock, under which work happens, too.

#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/fake_device/access_order.h"
#include "tests/support/fake_device/control.h"
#include "tests/support/fake_device/memories.h"
#include "tests/support/fake_device/options.h"

namespace cairn::device::fake {

// The work that was recorded: events share it with the waits for it.
struct Recorded {
  LineClock clock;
  bool done = false;
  Code code = Code::kOk;  // The error of the work before it.
};

// A launch of a kernel that a graph noted. The memory that it touches is checked at each launch of
// the graph.
struct Noted {
  std::string what;
  std::vector<Range> reads, writes;
  std::function<void()> run;
  std::function<void()> drop;

  Noted() = default;
  Noted(const Noted&) = delete;
  ~Noted() {
    if (drop) drop();
  }
};

}  // namespace cairn::device::fake

namespace cairn::device {

struct GraphHandle {
  uint32_t device = 0;
  std::vector<std::shared_ptr<fake::Noted>> noted;
};

struct StreamHandle {
  struct Work {
    std::string what;
    std::function<void()> run = {};
    std::function<void()> drop = {};
    uint64_t bytes = 0;                                        // For the rate.
    std::shared_ptr<fake::Recorded> records = {}, waits = {};  // At most one of them.
    std::function<bool()> ready = {};  // It waits for something outside as long as this says no.
  };
  uint32_t device = 0;
  fake::Line line = 0;
  std::deque<Work> work;
  Code failed = Code::kOk;         // The first failure since the last record.
  StreamHandle* lender = nullptr;  // For a borrowed stream: the one that has its work.
  // While it notes launches instead of doing them.
  std::unique_ptr<GraphHandle> capture;
  bool spoilt = false;
};

struct EventHandle {
  uint32_t device = 0;
  std::shared_ptr<fake::Recorded> recorded;
};

}  // namespace cairn::device

namespace cairn::device::fake {

// Where the work of a stream stands.
inline StreamHandle* Own(StreamHandle* stream) {
  return stream->lender == nullptr ? stream : stream->lender;
}

class Machine {
 public:
  // The one of this process. Options come from CAIRN_FAKE_DEVICE until the first Reset.
  static Machine& Get();

  void Reset(const FakeOptions& options);
  void Fail(const PlannedFailure& failure);
  void Lose(uint32_t device);
  bool Step();
  std::string TakeReports();
  FakeStats Stats();
  void HostAccess(const std::string& what, uint64_t address, uint64_t bytes, bool writes);
  void AddKernels(const std::string& name, uint32_t version, const void* table);

  // As DriverTable's.
  Code Initialize(Failure* failure);
  Code Count(uint32_t* devices, Failure* failure);
  Code Facts(uint32_t device, DeviceFacts* facts, Failure* failure);
  Code Open(uint32_t device, Failure* failure);
  Code Memory(uint32_t device, uint64_t* free_bytes, uint64_t* total_bytes, Failure* failure);
  Code Allocate(uint32_t device, uint64_t bytes, uint32_t flags, MemoryHandle** memory,
                uint64_t* address, Failure* failure);
  Code Export(MemoryHandle* memory, int* descriptor, Failure* failure);
  Code Import(uint32_t device, int descriptor, uint64_t bytes, MemoryHandle** memory,
              uint64_t* address, Failure* failure);
  void Release(MemoryHandle* memory);
  Code AllocateHost(uint64_t bytes, void** address, Failure* failure);
  void ReleaseHost(void* address);
  Code Register(void* address, uint64_t bytes, uint32_t flags, Failure* failure);
  Code Unregister(void* address, Failure* failure);
  Code CreateStream(uint32_t device, StreamHandle** stream, Failure* failure);
  Code BorrowStream(uint32_t device, void* native, StreamHandle** stream, Failure* failure);
  void DestroyStream(StreamHandle* stream);
  Code CreateEvent(uint32_t device, EventHandle** event, Failure* failure);
  void DestroyEvent(EventHandle* event);
  Code Record(StreamHandle* stream, EventHandle* event, Failure* failure);
  Code Wait(StreamHandle* stream, EventHandle* event, Failure* failure);
  Code Query(EventHandle* event, Failure* failure);
  Code Synchronize(EventHandle* event, Failure* failure);
  Code Copy(StreamHandle* stream, const char* what, std::span<const CopyTask> tasks,
            Failure* failure);
  Code Fill(StreamHandle* stream, const char* what, uint64_t address, uint8_t value, uint64_t bytes,
            Failure* failure);
  Code BeginCapture(StreamHandle* stream, Failure* failure);
  Code EndCapture(StreamHandle* stream, GraphHandle** graph, Failure* failure);
  Code LaunchGraph(StreamHandle* stream, GraphHandle* graph, Failure* failure);
  void DestroyGraph(GraphHandle* graph);
  Code Kernels(uint32_t device, const char* name, uint32_t version, const void** table,
               Failure* failure);
  Code Issue(StreamHandle* stream, const char* what, std::span<const Range> reads,
             std::span<const Range> writes, std::function<void()> run, std::function<void()> drop,
             std::function<bool()> ready = {});

 private:
  using Lock = std::lock_guard<std::recursive_mutex>;

  Machine();
  // kOk, or why the call fails: as a test planned it, or because the device is lost. `device`:
  // UINT32_MAX for calls of none.
  Code Enter(const char* operation, uint32_t device, Failure* failure);
  bool AnyLost() const;
  Code Say(Code code, const std::string& text, Failure* failure);
  void Report(const std::string& text);
  // Checks where the bytes lie, and what is before. False: the work must not touch them.
  bool Check(const StreamHandle& stream, const std::string& what, const Range& range, bool writes);
  void Push(StreamHandle* stream, StreamHandle::Work work);
  bool CanGo(const StreamHandle& stream) const;
  void RunOne(StreamHandle* stream);
  void Drop(StreamHandle* stream);
  void AddKernelsOf(const std::string& library);
  // An operation that the calling thread may not do while it notes a graph: the graph is spoilt.
  // Null: nothing is wrong.
  StreamHandle* SpoiltBy(const char* operation);
  bool CheckAll(const StreamHandle& stream, const std::string& what, std::span<const Range> reads,
                std::span<const Range> writes);

  std::recursive_mutex mu_;
  FakeOptions options_;
  std::mt19937_64 rng_;
  std::vector<PlannedFailure> failures_;
  std::vector<bool> lost_;
  std::vector<std::chrono::steady_clock::time_point> busy_until_;  // By device.
  std::unique_ptr<Memories> memories_;
  AccessOrder order_;
  std::list<std::unique_ptr<StreamHandle>> streams_;
  std::list<std::unique_ptr<EventHandle>> events_;
  std::list<std::unique_ptr<GraphHandle>> graphs_;
  std::map<std::thread::id, StreamHandle*> captures_;  // Under way, by the thread that began them.
  std::map<std::pair<std::string, uint32_t>, const void*> kernels_;
  std::string kernels_library_;
  std::string bad_option_;
  std::string reports_;
  FakeStats stats_;
};

}  // namespace cairn::device::fake
