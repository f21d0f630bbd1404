// Graphs of launches, over the fake device: what they do, what is checked at each launch, and what
// may not be done while they are made.

#include <gmock/gmock.h>

#include <cstring>

#include "common/device/device.h"
#include "common/status/matchers.h"
#include "tests/support/fake_device/fake_devices.h"

namespace cairn::device {
namespace {

using ::cairn::testing::StatusIs;
using fake::FakeDevices;
using ::testing::HasSubstr;

constexpr uint64_t kBytes = 64 << 10;

struct Rig {
  explicit Rig(FakeDevices& fake)
      : control(fake.control()),
        device(fake.Open()),
        stream(*device->NewUrgentStream()),
        other(*device->NewStream()),
        done(*device->NewEvent()),
        memory(*device->Allocate(kBytes, false)) {}

  // Launches a kernel that adds one to the first byte.
  Status AddOne() {
    const fake::Range range{memory.address(), 1};
    const Code code = control.issue(
        stream.native(), "add one", &range, 1, &range, 1,
        [](void* at) { ++*static_cast<uint8_t*>(at); }, nullptr,
        reinterpret_cast<void*>(memory.address()));
    return code == Code::kOk ? OkStatus() : Errorf(StatusCode::kInternal, "add one");
  }
  Status Finish(Stream& on) {
    CAIRN_RETURN_IF_ERROR(on.Record(done));
    return done.Synchronize();
  }
  uint8_t byte() const { return *reinterpret_cast<const uint8_t*>(memory.address()); }

  const fake::FakeControl& control;
  std::shared_ptr<Device> device;
  Stream stream, other;
  Event done;
  DeviceMemory memory;
};

TEST(FakeGraphsTest, WhatWasNotedHappensAtEachLaunchAndNotBefore) {
  for (const uint64_t seed : {1, 2, 3}) {
    FakeDevices fake({.seed = seed});
    Rig rig(fake);
    ASSERT_OK(rig.stream.Fill("fill", rig.memory.address(), 4, kBytes));
    auto graph = rig.stream.Capture([&] {
      CAIRN_RETURN_IF_ERROR(rig.AddOne());
      return rig.AddOne();
    });
    ASSERT_OK(graph);
    ASSERT_OK(rig.Finish(rig.stream));
    EXPECT_EQ(rig.byte(), 4);
    for (int launch = 1; launch <= 3; ++launch) {
      ASSERT_OK(rig.stream.Launch(*graph));
      ASSERT_OK(rig.Finish(rig.stream));
      EXPECT_EQ(rig.byte(), 4 + 2 * launch);
    }
    EXPECT_EQ(fake.stats().graph_launches, 3u);
  }
}

TEST(FakeGraphsTest, AMissingWaitBeforeALaunchIsFoundWithBothNames) {
  for (const uint64_t seed : {1, 2, 3}) {
    for (const bool waits : {true, false}) {
      FakeDevices fake({.seed = seed, .print_reports = false});
      Rig rig(fake);
      const auto graph = rig.stream.Capture([&] { return rig.AddOne(); });
      ASSERT_OK(graph);
      const Event filled = *rig.device->NewEvent();
      ASSERT_OK(rig.other.Fill("upload", rig.memory.address(), 9, kBytes));
      ASSERT_OK(rig.other.Record(filled));
      if (waits) {
        ASSERT_OK(rig.stream.Wait(filled));
      }
      ASSERT_OK(rig.stream.Launch(*graph));
      ASSERT_OK(rig.Finish(rig.stream));
      ASSERT_OK(rig.Finish(rig.other));
      const std::string reports = fake.TakeReports();
      if (waits) {
        EXPECT_EQ(reports, "");
        EXPECT_EQ(rig.byte(), 10);
      } else {
        EXPECT_THAT(reports, HasSubstr("'add one'"));
        EXPECT_THAT(reports, HasSubstr("'upload'"));
      }
    }
  }
}

TEST(FakeGraphsTest, AnythingButLaunchesSpoilsACapture) {
  FakeDevices fake({.print_reports = false});
  Rig rig(fake);
  const PinnedMemory host = *rig.device->AllocatePinned(kBytes);
  const CopyTask task{rig.memory.address(), reinterpret_cast<uint64_t>(host.bytes().data()), 16};
  ASSERT_OK(rig.stream.Record(rig.done));
  const std::pair<const char*, std::function<Status()>> forbidden[] = {
      {"copy",
       [&] {
         return rig.stream.Copy("copy", {&task, 1});
       }},
      {"fill", [&] { return rig.stream.Fill("fill", rig.memory.address(), 1, 1); }},
      {"record", [&] { return rig.other.Record(rig.done); }},
      {"wait", [&] { return rig.stream.Wait(rig.done); }},
      {"query", [&] { return rig.done.Query().status(); }},
      {"query", [&] { return rig.done.Synchronize(); }},
      {"allocate", [&] { return rig.device->Allocate(kBytes, false).status(); }},
      {"allocate_host", [&] { return rig.device->AllocatePinned(kBytes).status(); }},
      {"create_stream", [&] { return rig.device->NewStream().status(); }},
      {"begin_capture", [&] { return rig.other.Capture([] { return OkStatus(); }).status(); }},
  };
  for (const auto& [operation, call] : forbidden) {
    SCOPED_TRACE(operation);
    Status inside;
    const auto graph = rig.stream.Capture([&] {
      CAIRN_RETURN_IF_ERROR(rig.AddOne());
      inside = call();
      return OkStatus();
    });
    EXPECT_EQ(inside.code(), StatusCode::kInvalidArgument) << inside;
    EXPECT_THAT(graph.status(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("spoilt")));
    EXPECT_THAT(fake.TakeReports(), HasSubstr(std::string("'") + operation + "' while stream"));
  }
  // The stream is as it was.
  ASSERT_OK(rig.stream.Fill("fill", rig.memory.address(), 7, kBytes));
  ASSERT_OK(rig.AddOne());
  ASSERT_OK(rig.Finish(rig.stream));
  EXPECT_EQ(rig.byte(), 8);
}

TEST(FakeGraphsTest, FailuresOfACaptureLeaveTheStreamUsable) {
  FakeDevices fake;
  Rig rig(fake);
  for (const char* const operation : {"begin_capture", "issue", "end_capture"}) {
    SCOPED_TRACE(operation);
    rig.control.fail(operation, 0, 1, Code::kOther);
    EXPECT_FALSE(rig.stream.Capture([&] { return rig.AddOne(); }).ok());
    ASSERT_OK(rig.stream.Fill("fill", rig.memory.address(), 1, kBytes));
    ASSERT_OK(rig.AddOne());
    ASSERT_OK(rig.Finish(rig.stream));
    EXPECT_EQ(rig.byte(), 2);
  }
}

TEST(FakeGraphsTest, AGraphThatGoesBeforeItsLaunchHappenedIsReported) {
  FakeDevices fake({.print_reports = false});
  Rig rig(fake);
  ASSERT_OK(rig.stream.Fill("fill", rig.memory.address(), 1, kBytes));
  auto graph = rig.stream.Capture([&] { return rig.AddOne(); });
  ASSERT_OK(graph);
  ASSERT_OK(rig.stream.Launch(*graph));
  graph->Release();
  EXPECT_THAT(fake.TakeReports(), HasSubstr("a graph is destroyed before 'add one'"));
  ASSERT_OK(rig.Finish(rig.stream));
}

TEST(FakeGraphsTest, ALostDeviceLaunchesNothing) {
  FakeDevices fake;
  Rig rig(fake);
  const auto graph = rig.stream.Capture([&] { return rig.AddOne(); });
  ASSERT_OK(graph);
  fake.control().lose(0);
  EXPECT_EQ(rig.stream.Launch(*graph).code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace cairn::device
