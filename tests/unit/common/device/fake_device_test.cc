// The fake device, through the product's classes: what it does late, what it reports, and the
// failures that a test can ask for.

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "common/device/device.h"
#include "common/status/matchers.h"
#include "tests/support/fake_device/fake_devices.h"

namespace cairn::device {
namespace {

using ::cairn::testing::StatusIs;
using fake::FakeDevices;
using ::testing::HasSubstr;

constexpr uint64_t kBytes = 64 << 10;

uint64_t AddressOf(const void* at) { return reinterpret_cast<uint64_t>(at); }
uint64_t AddressOf(const PinnedMemory& memory) { return AddressOf(memory.bytes().data()); }

// A device, a stream and some memory of each kind.
struct Rig {
  explicit Rig(FakeDevices* fake, bool exportable = true)
      : device(fake->Open()),
        stream(*device->NewStream()),
        event(*device->NewEvent()),
        memory(*device->Allocate(kBytes, exportable)),
        host(*device->AllocatePinned(kBytes)),
        back(*device->AllocatePinned(kBytes)) {}
  Status Copy(uint64_t to, uint64_t from, uint64_t bytes = kBytes) {
    const CopyTask task{to, from, bytes};
    return stream.Copy("copy", {&task, 1});
  }
  Status Finish() {
    CAIRN_RETURN_IF_ERROR(stream.Record(event));
    return event.Synchronize();
  }

  std::shared_ptr<Device> device;
  Stream stream;
  Event event;
  DeviceMemory memory;
  PinnedMemory host, back;
};

TEST(FakeDeviceTest, BytesGoThereAndBackWhenTheirEventHasHappened) {
  FakeDevices fake;
  Rig rig(&fake);
  std::memset(rig.host.bytes().data(), 7, kBytes);
  ASSERT_OK(rig.Copy(rig.memory.address(), AddressOf(rig.host)));
  ASSERT_OK(rig.Copy(AddressOf(rig.back), rig.memory.address()));
  ASSERT_OK(rig.stream.Record(rig.event));
  EXPECT_EQ(rig.back.bytes()[0], std::byte{0}) << "nothing happens before it is asked for";
  EXPECT_FALSE(*rig.event.Query());
  ASSERT_OK(rig.event.Synchronize());
  fake.HostReads(rig.back.bytes().data(), kBytes);
  EXPECT_EQ(std::memcmp(rig.back.bytes().data(), rig.host.bytes().data(), kBytes), 0);
}

// A save as a connector makes it: the engine writes a page, which is gathered into a staging buffer
// on the engine's stream and copied out on another one; the host reads it a round later. `without`:
// the wait that is left out.
std::string Save(int without, uint64_t seed) {
  FakeDevices fake({.seed = seed, .print_reports = false});
  {
    const auto device = fake.Open();
    Stream compute = *device->NewStream(), copies = *device->NewStream();
    const Event gathered = *device->NewEvent();
    const Event copied[2] = {*device->NewEvent(), *device->NewEvent()};
    const DeviceMemory page = *device->Allocate(kBytes, false);
    const DeviceMemory staging = *device->Allocate(kBytes, false);
    const PinnedMemory arena[2] = {*device->AllocatePinned(kBytes),
                                   *device->AllocatePinned(kBytes)};
    for (int round = 0; round < 6; ++round) {
      EXPECT_OK(compute.Fill("forward", page.address(), static_cast<uint8_t>(round + 1), kBytes));
      if (round > 0 && without != 1) {
        EXPECT_OK(compute.Wait(copied[(round - 1) % 2]));
      }
      const CopyTask gather{staging.address(), page.address(), kBytes};
      EXPECT_OK(compute.Copy("gather", {&gather, 1}));
      if (without != 4) {
        EXPECT_OK(compute.Record(gathered));
      }
      if (without != 2) {
        EXPECT_OK(copies.Wait(gathered));
      }
      const CopyTask out{AddressOf(arena[round % 2]), staging.address(), kBytes};
      EXPECT_OK(copies.Copy("save", {&out, 1}));
      EXPECT_OK(copies.Record(copied[round % 2]));
      if (round == 0) continue;
      if (without != 3) {
        EXPECT_OK(copied[(round - 1) % 2].Synchronize());
      }
      fake.HostReads(arena[(round - 1) % 2].bytes().data(), kBytes, "hash");
    }
    const Event end[2] = {*device->NewEvent(), *device->NewEvent()};
    EXPECT_OK(compute.Record(end[0]));
    EXPECT_OK(copies.Record(end[1]));
    for (const Event& event : end) EXPECT_OK(event.Synchronize());
  }
  return fake.TakeReports();
}

TEST(FakeDeviceTest, WithAllWaitsNothingIsReported) {
  for (uint64_t seed = 1; seed <= 30; ++seed) EXPECT_EQ(Save(0, seed), "") << "seed " << seed;
}

TEST(FakeDeviceTest, EachMissingWaitIsFoundAtEverySeedWithBothNames) {
  const char* const names[][2] = {
      {"'gather'", "'save'"}, {"'save'", "'gather'"}, {"'hash'", "'save'"}, {"never recorded", ""}};
  for (int without = 1; without <= 4; ++without) {
    for (uint64_t seed = 1; seed <= 30; ++seed) {
      const std::string reports = Save(without, seed);
      EXPECT_THAT(reports, HasSubstr(names[without - 1][0])) << without << " seed " << seed;
      EXPECT_THAT(reports, HasSubstr(names[without - 1][1])) << without << " seed " << seed;
    }
  }
}

TEST(FakeDeviceTest, AHostThatChangesWhatACopyReadsIsFound) {
  FakeDevices fake;
  Rig rig(&fake);
  ASSERT_OK(rig.Copy(rig.memory.address(), AddressOf(rig.host)));
  fake.HostWrites(rig.host.bytes().data(), 1, "reuse");
  EXPECT_THAT(fake.TakeReports(), HasSubstr("'reuse' of the host writes what 'copy' of stream"));
  ASSERT_OK(rig.Finish());
}

TEST(FakeDeviceTest, AnotherProcessImportsTheMemoryAndSeesTheBytes) {
  FakeDevices fake;
  Rig rig(&fake);
  ASSERT_OK(rig.stream.Fill("fill", rig.memory.address(), 9, kBytes));
  ASSERT_OK(rig.Finish());
  const auto descriptor = rig.memory.Export();
  ASSERT_OK(descriptor);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto imported = rig.device->Import(*descriptor, kBytes);
    if (!imported.ok()) _exit(1);
    auto* const bytes = reinterpret_cast<volatile uint8_t*>(imported->address());
    const bool right = bytes[0] == 9 && bytes[kBytes - 1] == 9;
    bytes[1] = 42;
    _exit(right ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(reinterpret_cast<const uint8_t*>(rig.memory.address())[1], 42);
  close(*descriptor);
}

TEST(FakeDeviceTest, WorkOnABorrowedStreamStandsInTheLineOfItsOwner) {
  FakeDevices fake({.devices = 2, .print_reports = false});
  Rig rig(&fake);
  auto borrowed = rig.device->BorrowStream(rig.stream.native());
  ASSERT_OK(borrowed);
  ASSERT_OK(rig.stream.Fill("fill", rig.memory.address(), 4, kBytes));
  const CopyTask task{AddressOf(rig.back), rig.memory.address(), kBytes};
  ASSERT_OK(borrowed->Copy("copy", {&task, 1}));
  ASSERT_OK(borrowed->Record(rig.event));
  borrowed->Release();
  ASSERT_OK(rig.event.Synchronize());
  fake.HostReads(rig.back.bytes().data(), kBytes);
  EXPECT_EQ(rig.back.bytes()[0], std::byte{4});
  EXPECT_EQ(fake.TakeReports(), "") << "one line of work";
  for (void* const native : {static_cast<void*>(&rig), static_cast<void*>(nullptr)}) {
    EXPECT_THAT(rig.device->BorrowStream(native).status(),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("no such stream")));
  }
  EXPECT_FALSE(fake.Open(1)->BorrowStream(rig.stream.native()).ok());
  // Its owner must not end before.
  borrowed = rig.device->BorrowStream(rig.stream.native());
  ASSERT_OK(borrowed);
  rig.stream.Release();
  EXPECT_THAT(fake.TakeReports(), HasSubstr("destroyed while it is borrowed"));
}

TEST(FakeDeviceTest, MemoryOfAnotherSizeIsNotImported) {
  FakeDevices fake;
  Rig rig(&fake);
  const auto descriptor = rig.memory.Export();
  ASSERT_OK(descriptor);
  EXPECT_THAT(rig.device->Import(*descriptor, 2 * kBytes),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("importing memory")));
  close(*descriptor);
}

TEST(FakeDeviceTest, TheNthCallFailsAndTheOthersDoNot) {
  FakeDevices fake;
  Rig rig(&fake);
  fake.control().fail("copy", 1, 1, Code::kOther);
  EXPECT_OK(rig.Copy(rig.memory.address(), AddressOf(rig.host)));
  EXPECT_THAT(rig.Copy(rig.memory.address(), AddressOf(rig.host)),
              StatusIs(StatusCode::kInternal, HasSubstr("device 0: copying: a failure")));
  EXPECT_OK(rig.Copy(rig.memory.address(), AddressOf(rig.host)));
  EXPECT_OK(rig.Finish());
}

TEST(FakeDeviceTest, WorkThatFailsIsToldByTheEventBehindIt) {
  FakeDevices fake;
  Rig rig(&fake);
  fake.control().fail("work", 0, 1, Code::kOther);
  ASSERT_OK(rig.Copy(rig.memory.address(), AddressOf(rig.host)));
  EXPECT_THAT(rig.Finish(), StatusIs(StatusCode::kInternal, HasSubstr("waiting for an event")));
  EXPECT_OK(rig.Finish());
}

TEST(FakeDeviceTest, ALostDeviceStaysLostAndGivesBackAllTheSame) {
  FakeDevices fake;
  {
    Rig rig(&fake);
    std::vector<std::byte> own(kBytes);
    ASSERT_OK(rig.Copy(rig.memory.address(), AddressOf(rig.host)));
    fake.control().fail("work", 0, 1, Code::kLost);
    EXPECT_THAT(rig.Finish(), StatusIs(StatusCode::kUnavailable, HasSubstr("lost")));
    EXPECT_TRUE(rig.device->lost());
    const Status first = rig.device->LossStatus();
    EXPECT_EQ(rig.Copy(AddressOf(rig.back), rig.memory.address()), first);
    EXPECT_EQ(rig.device->Allocate(kBytes, true).status(), first);
    EXPECT_EQ(rig.device->NewStream().status(), first);
    EXPECT_EQ(rig.memory.Export().status(), first);
    EXPECT_EQ(rig.event.Query().status(), first);
  }
  EXPECT_EQ(fake.stats().handles, 0u);
}

TEST(FakeDeviceTest, MemoryEndsWhereTheDeviceSays) {
  FakeDevices fake({.memory_bytes = 2 * kBytes});
  const auto device = fake.Open();
  auto first = device->Allocate(kBytes + 1, false);
  ASSERT_OK(first);
  EXPECT_EQ(first->bytes(), 2 * kBytes);
  EXPECT_THAT(device->Allocate(1, false), StatusIs(StatusCode::kResourceExhausted, HasSubstr("")));
  EXPECT_EQ(device->GetMemoryState()->free_bytes, 0u);
  first->Release();
  EXPECT_OK(device->Allocate(1, false));
}

TEST(FakeDeviceTest, WhatTheMachineCannotDoIsSaid) {
  FakeDevices fake({.pinned_bytes = kBytes, .exports = false, .registers_read_only = false});
  const auto device = fake.Open();
  std::vector<std::byte> own(2 * kBytes);
  EXPECT_THAT(device->Allocate(kBytes, true),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("exported")));
  EXPECT_THAT(device->Register(own, true),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("read-only")));
  EXPECT_THAT(device->Register(own, false), StatusIs(StatusCode::kPermissionDenied, HasSubstr("")));
  EXPECT_THAT(device->AllocatePinned(2 * kBytes),
              StatusIs(StatusCode::kPermissionDenied, HasSubstr("pinned")));
}

TEST(FakeDeviceTest, ARegistrationWhoseMemoryChangedIsFoundBeforeItIsRead) {
  FakeDevices fake;
  Rig rig(&fake);
  const auto map = [](void* at) {
    const int memory = memfd_create("test", MFD_CLOEXEC);
    CAIRN_CHECK(ftruncate(memory, kBytes) == 0);
    void* const mapped = mmap(at, kBytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | (at == nullptr ? 0 : MAP_FIXED), memory, 0);
    close(memory);
    return static_cast<std::byte*>(mapped);
  };
  std::byte* const segment = map(nullptr);
  auto registration = rig.device->Register({segment, kBytes}, false);
  ASSERT_OK(registration);
  ASSERT_OK(rig.Copy(rig.memory.address(), AddressOf(segment)));
  ASSERT_OK(rig.Finish());
  EXPECT_EQ(fake.stats().pageable_copies, 0u);
  map(segment);
  ASSERT_OK(rig.Copy(rig.memory.address(), AddressOf(segment)));
  EXPECT_THAT(fake.TakeReports(), HasSubstr("registration whose memory has changed"));
  ASSERT_OK(rig.Finish());
  registration->Release();
  EXPECT_THAT(fake.TakeReports(), HasSubstr("unregistered only now"));
  munmap(segment, kBytes);
}

TEST(FakeDeviceTest, UsesOfWrongMemoryAreReported) {
  FakeDevices fake({.devices = 2});
  Rig rig(&fake);
  const auto other = fake.Open(1);
  const DeviceMemory foreign = *other->Allocate(kBytes, false);
  DeviceMemory gone = *rig.device->Allocate(kBytes, false);
  const uint64_t gone_address = gone.address();
  gone.Release();
  ASSERT_OK(rig.Copy(rig.memory.address(), foreign.address()));
  EXPECT_THAT(fake.TakeReports(), HasSubstr("memory of another device"));
  ASSERT_OK(rig.Copy(rig.memory.address(), gone_address));
  EXPECT_THAT(fake.TakeReports(), HasSubstr("memory that was given back"));
  ASSERT_OK(rig.Copy(rig.memory.address() + 1, AddressOf(rig.host)));
  EXPECT_THAT(fake.TakeReports(), HasSubstr("goes beyond the memory"));
  ASSERT_OK(rig.Finish());
}

TEST(FakeDeviceTest, MemoryGivenBackUnderACopyIsReported) {
  FakeDevices fake;
  Rig rig(&fake);
  ASSERT_OK(rig.Copy(rig.memory.address(), AddressOf(rig.host)));
  ASSERT_OK(rig.Finish());
  ASSERT_OK(rig.stream.Fill("fill", rig.memory.address(), 1, kBytes));
  fake.control().step();
  rig.memory.Release();
  EXPECT_THAT(fake.TakeReports(), HasSubstr("'giving memory back' of the host writes what 'fill'"));
}

TEST(FakeDeviceTest, ARateTakesItsTime) {
  FakeDevices fake({.bytes_per_second = kBytes * 50});
  Rig rig(&fake);
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_OK(rig.Copy(rig.memory.address(), AddressOf(rig.host)));
  ASSERT_OK(rig.Finish());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
}

TEST(FakeDeviceTest, FakeKernelsAreFoundByNameAndVersionAndRunOnTheStream) {
  FakeDevices fake;
  struct Table {
    void (*add_one)(void* stream, uint64_t address, const fake::FakeControl* control);
  };
  static const Table table{[](void* stream, uint64_t address, const fake::FakeControl* control) {
    const fake::Range range{address, 1};
    control->issue(
        stream, "add one", &range, 1, &range, 1, [](void* at) { ++*static_cast<uint8_t*>(at); },
        nullptr, reinterpret_cast<void*>(address));
  }};
  fake.control().add_kernels("test", 3, &table);
  Rig rig(&fake);
  EXPECT_THAT(rig.device->Kernels("test", 4),
              StatusIs(StatusCode::kNotFound, HasSubstr("there are: test 3")));
  const auto kernels = rig.device->Kernels("test", 3);
  ASSERT_OK(kernels);
  ASSERT_OK(rig.stream.Fill("fill", rig.memory.address(), 4, kBytes));
  static_cast<const Table*>(*kernels)->add_one(rig.stream.native(), rig.memory.address(),
                                               &fake.control());
  ASSERT_OK(rig.Finish());
  EXPECT_EQ(*reinterpret_cast<const uint8_t*>(rig.memory.address()), 5);
}

TEST(FakeDeviceTest, AMachineWithoutADriverSaysSo) {
  FakeDevices fake({.has_driver = false});
  EXPECT_THAT(Driver::Use(fake.table()),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("no driver is installed")));
  const fake::FakeOptions old{.old_driver = true};
  fake.control().reset(&old);
  EXPECT_THAT(Driver::Use(fake.table()),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("of version 1")));
}

}  // namespace
}  // namespace cairn::device
