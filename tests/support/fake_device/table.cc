// The two tables of the library, over Machine.

#include "tests/support/fake_device/table.h"

#include <cstdio>

#include "tests/support/fake_device/machine.h"

namespace cairn::device::fake {
namespace {

void AddGraphs(DriverTable* t) {
  t->begin_capture = [](StreamHandle* stream, Failure* f) {
    return Machine::Get().BeginCapture(stream, f);
  };
  t->end_capture = [](StreamHandle* stream, GraphHandle** graph, Failure* f) {
    return Machine::Get().EndCapture(stream, graph, f);
  };
  t->launch_graph = [](StreamHandle* stream, GraphHandle* graph, Failure* f) {
    return Machine::Get().LaunchGraph(stream, graph, f);
  };
  t->destroy_graph = [](GraphHandle* graph) { Machine::Get().DestroyGraph(graph); };
}

DriverTable MakeTable() {
  DriverTable t;
  t.version = kTableVersion;
  t.bytes = sizeof(DriverTable);
  t.name = "fake";
  t.initialize = [](Failure* f) { return Machine::Get().Initialize(f); };
  t.count = [](uint32_t* devices, Failure* f) { return Machine::Get().Count(devices, f); };
  t.facts = [](uint32_t device, DeviceFacts* facts, Failure* f) {
    return Machine::Get().Facts(device, facts, f);
  };
  t.open = [](uint32_t device, Failure* f) { return Machine::Get().Open(device, f); };
  t.memory = [](uint32_t device, uint64_t* free_bytes, uint64_t* total_bytes, Failure* f) {
    return Machine::Get().Memory(device, free_bytes, total_bytes, f);
  };
  t.allocate = [](uint32_t device, uint64_t bytes, uint32_t flags, MemoryHandle** memory,
                  uint64_t* address, Failure* f) {
    return Machine::Get().Allocate(device, bytes, flags, memory, address, f);
  };
  t.export_memory = [](MemoryHandle* memory, int* descriptor, Failure* f) {
    return Machine::Get().Export(memory, descriptor, f);
  };
  t.import_memory = [](uint32_t device, int descriptor, uint64_t bytes, MemoryHandle** memory,
                       uint64_t* address, Failure* f) {
    return Machine::Get().Import(device, descriptor, bytes, memory, address, f);
  };
  t.release_memory = [](MemoryHandle* memory) { Machine::Get().Release(memory); };
  t.allocate_host = [](uint64_t bytes, void** address, Failure* f) {
    return Machine::Get().AllocateHost(bytes, address, f);
  };
  t.release_host = [](void* address) { Machine::Get().ReleaseHost(address); };
  t.register_host = [](void* address, uint64_t bytes, uint32_t flags, Failure* f) {
    return Machine::Get().Register(address, bytes, flags, f);
  };
  t.unregister_host = [](void* address, Failure* f) {
    return Machine::Get().Unregister(address, f);
  };
  t.create_stream = [](uint32_t device, StreamHandle** stream, Failure* f) {
    return Machine::Get().CreateStream(device, stream, f);
  };
  // Which kernels begin first is chance here, whatever the stream.
  t.create_urgent_stream = t.create_stream;
  t.borrow_stream = [](uint32_t device, void* native, StreamHandle** stream, Failure* f) {
    return Machine::Get().BorrowStream(device, native, stream, f);
  };
  t.destroy_stream = [](StreamHandle* stream) { Machine::Get().DestroyStream(stream); };
  t.native_stream = [](StreamHandle* stream) -> void* { return stream; };
  t.create_event = [](uint32_t device, EventHandle** event, Failure* f) {
    return Machine::Get().CreateEvent(device, event, f);
  };
  t.destroy_event = [](EventHandle* event) { Machine::Get().DestroyEvent(event); };
  t.record = [](StreamHandle* stream, EventHandle* event, Failure* f) {
    return Machine::Get().Record(stream, event, f);
  };
  t.wait = [](StreamHandle* stream, EventHandle* event, Failure* f) {
    return Machine::Get().Wait(stream, event, f);
  };
  t.query = [](EventHandle* event, Failure* f) { return Machine::Get().Query(event, f); };
  t.synchronize = [](EventHandle* event, Failure* f) {
    return Machine::Get().Synchronize(event, f);
  };
  t.copy = [](StreamHandle* stream, const char* what, const CopyTask* tasks, uint64_t count,
              Failure* f) {
    return Machine::Get().Copy(stream, what, {tasks, count}, f);
  };
  t.fill = [](StreamHandle* stream, const char* what, uint64_t address, uint8_t value,
              uint64_t bytes,
              Failure* f) { return Machine::Get().Fill(stream, what, address, value, bytes, f); };
  AddGraphs(&t);
  t.kernels = [](uint32_t device, const char* name, uint32_t version, const void** table,
                 Failure* f) { return Machine::Get().Kernels(device, name, version, table, f); };
  return t;
}

FakeControl MakeControl() {
  FakeControl c;
  c.version = kControlVersion;
  c.reset = [](const FakeOptions* options) { Machine::Get().Reset(*options); };
  c.fail = [](const char* operation, uint64_t after, uint64_t times, Code code) {
    Machine::Get().Fail({operation, after, times, code});
  };
  c.lose = [](uint32_t device) { Machine::Get().Lose(device); };
  c.step = [] { return Machine::Get().Step(); };
  c.take_reports = [](char* buffer, uint64_t bytes) {
    std::snprintf(buffer, bytes, "%s", Machine::Get().TakeReports().c_str());
  };
  c.stats = [](FakeStats* stats) { *stats = Machine::Get().Stats(); };
  c.host_access = [](const char* what, uint64_t address, uint64_t bytes, bool writes) {
    Machine::Get().HostAccess(what, address, bytes, writes);
  };
  c.issue = [](void* stream, const char* what, const Range* reads, uint64_t read_count,
               const Range* writes, uint64_t write_count, void (*run)(void*), void (*drop)(void*),
               void* context) {
    return Machine::Get().Issue(
        static_cast<StreamHandle*>(stream), what, {reads, read_count}, {writes, write_count},
        [run, context] { run(context); },
        [drop, context] {
          if (drop != nullptr) drop(context);
        });
  };
  c.issue_when = [](void* stream, const char* what, const Range* reads, uint64_t read_count,
                    const Range* writes, uint64_t write_count, bool (*ready)(void*),
                    void (*run)(void*), void (*drop)(void*), void* context) {
    return Machine::Get().Issue(
        static_cast<StreamHandle*>(stream), what, {reads, read_count}, {writes, write_count},
        [run, context] { run(context); }, [drop, context] { drop(context); },
        [ready, context] { return ready(context); });
  };
  c.add_kernels = [](const char* name, uint32_t version, const void* table) {
    Machine::Get().AddKernels(name, version, table);
  };
  return c;
}

}  // namespace

const FakeControl* FakeControlTable() {
  static const FakeControl control = MakeControl();
  return &control;
}

}  // namespace cairn::device::fake

extern "C" {

__attribute__((visibility("default"))) const cairn::device::DriverTable* cairn_device_driver(
    uint32_t version) {
  static const cairn::device::DriverTable table = cairn::device::fake::MakeTable();
  return version == cairn::device::kTableVersion ? &table : nullptr;
}

__attribute__((visibility("default"))) const cairn::device::fake::FakeControl*
cairn_fake_device_control(uint32_t version) {
  return version == cairn::device::fake::kControlVersion ? cairn::device::fake::FakeControlTable()
                                                         : nullptr;
}
}
