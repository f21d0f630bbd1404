// Saves and loads on the fake device, which runs work late and in seeded orders, and reports each
// access that no wait orders.

#include "clients/pages/page_mover.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "common/status/matchers.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/support/fake_kernels/slice_kernels.h"
#include "tests/unit/clients/pages/value.h"

namespace cairn::pages {
namespace {

using ::cairn::testing::StatusIs;
using device::Code;
using device::DriverTable;
using device::EventHandle;
using device::Failure;
using device::StreamHandle;
using device::fake::FakeDevices;
using device::fake::FakeOptions;
using ::testing::_;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kLayers = 3;
constexpr uint32_t kBlocks = 16;
constexpr uint64_t kPage = 512;
constexpr uint64_t kBlock = kLayers * kPage;
constexpr uint64_t kSeeds = 20;

// How an engine may keep its layers. With kernels, blocks that have several runs are moved by them.
enum class Layout { kByLayer, kByBlock, kByLayerWithKernels };

EnginePages PagesAt(uint64_t address, Layout layout) {
  EnginePages pages{{}, kBlocks};
  if (layout == Layout::kByBlock) {
    pages.runs = {{address, kBlock, kBlock}};
  } else {
    for (uint32_t i = 0; i < kLayers; ++i) {
      pages.runs.push_back({address + i * kBlocks * kPage, kPage, kPage});
    }
  }
  return pages;
}

// An engine with its stream and pages, and a mover of them.
class Engine {
 public:
  Engine(FakeDevices* fake, Layout layout, PageMover::Options options = {8, 8},
         std::shared_ptr<device::Device> opened = nullptr)
      : fake_(*fake),
        device_(Open(fake, layout, std::move(opened))),
        stream_(*device_->NewStream()),
        kv_(*device_->Allocate(kBlocks * kBlock, false)),
        pages_(PagesAt(kv_.address(), layout)) {
    mover_ = Value(PageMover::Create(
        device_, Value(OpaqueForm(pages_, SliceKernelsOf(device_.get()))), options, &poller_));
  }
  ~Engine() {
    mover_.reset();
    const auto end = device_->NewEvent();
    if (end.ok() && stream_.Record(*end).ok()) (void)end->Synchronize();
  }

  static std::shared_ptr<device::Device> Open(FakeDevices* fake, Layout layout,
                                              std::shared_ptr<device::Device> opened) {
    if (layout == Layout::kByLayerWithKernels) kernels::testing::AddSliceKernels(fake->control());
    return opened == nullptr ? fake->Open() : std::move(opened);
  }

  PageMover& mover() { return *mover_; }
  device::Device& device() { return *device_; }
  void* native() { return stream_.native(); }

  // Launches work that writes blocks: every layer gets another byte.
  void Forward(std::span<const uint32_t> blocks, uint8_t seed) {
    for (const uint32_t block : blocks) {
      uint8_t layer = 0;
      for (const PageRun& run : pages_.runs) {
        const uint64_t pieces = run.bytes / kPage;
        for (uint64_t piece = 0; piece < pieces; ++piece) {
          EXPECT_OK(stream_.Fill("forward", run.address + block * run.stride + piece * kPage,
                                 Byte(block, layer++, seed), kPage));
        }
      }
    }
  }
  static uint8_t Byte(uint32_t block, uint32_t layer, uint8_t seed) {
    return static_cast<uint8_t>(seed + block * kLayers + layer);
  }
  static bool Holds(std::span<const std::byte> flat, uint32_t block, uint8_t seed) {
    for (uint64_t i = 0; i < kBlock; ++i) {
      if (flat[i] != std::byte{Byte(block, static_cast<uint32_t>(i / kPage), seed)}) return false;
    }
    return true;
  }
  // Whether a page holds them, now.
  bool PageHolds(uint32_t block, uint8_t seed) {
    std::vector<std::byte> flat;
    for (const PageRun& run : pages_.runs) {
      const auto* const at = reinterpret_cast<const std::byte*>(run.address + block * run.stride);
      fake_.HostReads(at, run.bytes);
      flat.insert(flat.end(), at, at + run.bytes);
    }
    return Holds(flat, block, seed);
  }

  Status Await(const Transfer& transfer) {
    while (!transfer.result()) poller_.Step();
    return *transfer.result();
  }
  void StepAll() {
    while (!poller_.idle()) poller_.Step();
  }
  // Bytes of the blocks go into slots, as a fetch writes them, and from there to the pages.
  Result<std::shared_ptr<Transfer>> Load(std::span<const uint32_t> blocks, uint8_t seed) {
    CAIRN_ASSIGN_OR_RETURN(const auto fence, mover_->MakeFence(native()));
    const auto slots = mover_->AwaitLoadSlots(blocks.size(), TimePoint::max());
    for (size_t i = 0; i < slots.size(); ++i) {
      const auto flat = mover_->load_slot(slots[i]);
      fake_.HostWrites(flat.data(), flat.size());
      for (uint64_t at = 0; at < kBlock; ++at) {
        flat[at] = std::byte{Byte(blocks[i], static_cast<uint32_t>(at / kPage), seed)};
      }
    }
    return mover_->LoadBlocks(*fence, slots, blocks.first(slots.size()));
  }
  // Whether the slots of an ended save hold the blocks.
  bool SlotsHold(const PageMover::Save& save, std::span<const uint32_t> blocks, uint8_t seed) {
    bool holds = true;
    for (size_t i = 0; i < save.slots.size(); ++i) {
      const auto flat = mover_->save_slot(save.slots[i]);
      fake_.HostReads(flat.data(), flat.size());
      holds = holds && Holds(flat, blocks[i], seed);
    }
    return holds;
  }

 private:
  FakeDevices& fake_;
  std::shared_ptr<device::Device> device_;
  device::Stream stream_;
  device::DeviceMemory kv_;
  EnginePages pages_;
  device::EventPoller poller_;
  std::unique_ptr<PageMover> mover_;
};

class PageMoverTest : public ::testing::TestWithParam<Layout> {
 public:
  // As the fake device names the work.
  std::string gather() const { return With("'gather_pages'", "'gather of a save'"); }
  std::string scatter() const { return With("'scatter_pages'", "'scatter of a load'"); }

 private:
  static std::string With(std::string_view kernel, std::string_view copy) {
    return std::string(GetParam() == Layout::kByLayerWithKernels ? kernel : copy);
  }
};
INSTANTIATE_TEST_SUITE_P(Layouts, PageMoverTest,
                         ::testing::Values(Layout::kByLayer, Layout::kByBlock,
                                           Layout::kByLayerWithKernels));

// Which call of the driver fails is told by its number among the copies.
class PageMoverCallTest : public PageMoverTest {};
INSTANTIATE_TEST_SUITE_P(Layouts, PageMoverCallTest,
                         ::testing::Values(Layout::kByLayer, Layout::kByBlock));

TEST_P(PageMoverTest, ASaveHasTheBytesOfItsStepThoughTheEngineUsesThePagesAtOnce) {
  const uint32_t blocks[] = {3, 4, 9};
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    FakeDevices fake({.seed = seed});
    Engine engine(&fake, GetParam());
    for (uint8_t round = 0; round < 6; ++round) {
      const auto first = static_cast<uint8_t>(10 * round);
      engine.Forward(blocks, first);
      const auto save = Value(engine.mover().SaveBlocks(engine.native(), blocks));
      ASSERT_EQ(save.slots.size(), 3u);
      // The request was preempted, and others get its pages.
      engine.Forward(blocks, static_cast<uint8_t>(first + 5));
      ASSERT_OK(engine.Await(*save.transfer));
      EXPECT_TRUE(engine.SlotsHold(save, blocks, first)) << "seed " << seed;
      engine.mover().GiveBackSaveSlots(save.slots);
    }
  }
}

TEST_P(PageMoverTest, ALoadComesAfterTheEnginesWorkSoFar) {
  const uint32_t blocks[] = {7, 1, 2};
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    FakeDevices fake({.seed = seed});
    Engine engine(&fake, GetParam());
    // The pages' last user is still at work when the load begins.
    engine.Forward(blocks, 1);
    const auto transfer = Value(engine.Load(blocks, 100));
    ASSERT_OK(engine.Await(*transfer));
    for (const uint32_t block : blocks) EXPECT_TRUE(engine.PageHolds(block, 100)) << seed;
    // And its next user may write at once.
    engine.Forward(blocks, 50);
  }
}

TEST_P(PageMoverTest, SavesAndLoadsGoOnNextToEachOther) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    FakeDevices fake({.seed = seed});
    Engine engine(&fake, GetParam());
    const uint32_t saved[] = {1, 2, 3, 4}, loaded[] = {5, 6, 7, 8};
    engine.Forward(saved, 9);
    const auto transfer = Value(engine.Load(loaded, 70));
    const auto save = Value(engine.mover().SaveBlocks(engine.native(), saved));
    ASSERT_OK(engine.Await(*save.transfer));
    EXPECT_TRUE(engine.SlotsHold(save, saved, 9));
    ASSERT_OK(engine.Await(*transfer));
    for (const uint32_t block : loaded) EXPECT_TRUE(engine.PageHolds(block, 70)) << seed;
  }
}

TEST_P(PageMoverTest, WhatFindsNoSlotIsLeftOutOfASave) {
  FakeDevices fake;
  Engine engine(&fake, GetParam(), {4, 1});
  const uint32_t blocks[] = {1, 2, 3, 4, 5, 6};
  engine.Forward(blocks, 0);
  const auto first = Value(engine.mover().SaveBlocks(engine.native(), blocks));
  EXPECT_EQ(first.slots.size(), 4u);
  const auto none = Value(engine.mover().SaveBlocks(engine.native(), blocks));
  EXPECT_TRUE(none.slots.empty());
  EXPECT_EQ(none.transfer, nullptr);
  ASSERT_OK(engine.Await(*first.transfer));
  EXPECT_TRUE(engine.SlotsHold(first, blocks, 0));
  engine.mover().GiveBackSaveSlots(std::span(first.slots).first(3));
  const auto more = Value(engine.mover().SaveBlocks(engine.native(), blocks));
  EXPECT_EQ(more.slots.size(), 3u);
}

TEST(PageMoverWaitTest, NobodyWaitsLongerThanAskedForALoadSlot) {
  FakeDevices fake;
  Engine engine(&fake, Layout::kByBlock, {1, 2});
  const auto slots = engine.mover().AwaitLoadSlots(5, TimePoint::max());
  EXPECT_EQ(slots.size(), 2u);
  EXPECT_TRUE(engine.mover().AwaitLoadSlots(1, std::chrono::steady_clock::now()).empty());
  engine.mover().GiveBackLoadSlots(slots);
  EXPECT_EQ(engine.mover().AwaitLoadSlots(1, TimePoint::max()).size(), 1u);
}

TEST(PageMoverWaitTest, TheEndOfADeviceThatHangsIsNotWaitedForForever) {
  FakeDevices fake;
  Engine engine(&fake, Layout::kByBlock);
  std::atomic<bool> ready = false;
  EXPECT_EQ(fake.control().issue_when(
                engine.native(), "forward", nullptr, 0, nullptr, 0,
                [](void* done) { return static_cast<std::atomic<bool>*>(done)->load(); },
                [](void*) {}, [](void*) {}, &ready),
            Code::kOk);
  const uint32_t blocks[] = {1};
  const auto save = Value(engine.mover().SaveBlocks(engine.native(), blocks));
  EXPECT_FALSE(engine.mover().AwaitEnd(TimePoint::min()));
  ready = true;
  EXPECT_TRUE(engine.mover().AwaitEnd(TimePoint::max()));
  EXPECT_TRUE(save.transfer->result().has_value());
}

TEST(PageMoverKernelTest, KernelsGatherTheLayersAndOneCopyTakesTheBlocksOut) {
  FakeDevices fake;
  Engine engine(&fake, Layout::kByLayerWithKernels);
  EXPECT_TRUE(engine.mover().form().runs_kernels());
  const uint32_t blocks[] = {11, 3, 4};
  engine.Forward(blocks, 1);
  const uint64_t before = fake.stats().copies;
  const auto save = Value(engine.mover().SaveBlocks(engine.native(), blocks));
  ASSERT_OK(engine.Await(*save.transfer));
  EXPECT_EQ(fake.stats().copies - before, 1u);
  EXPECT_TRUE(engine.SlotsHold(save, blocks, 1));
}

TEST(PageMoverKernelTest, PagesThatKernelsCannotMoveAreCopied) {
  FakeDevices fake;
  kernels::testing::AddSliceKernels(fake.control());
  const auto device = fake.Open();
  const auto* const kernels = SliceKernelsOf(device.get());
  ASSERT_NE(kernels, nullptr);
  const auto runs_kernels = [&](std::vector<PageRun> runs) {
    return Value(OpaqueForm({std::move(runs), 4}, kernels))->runs_kernels();
  };
  EXPECT_TRUE(runs_kernels({{1 << 20, 64, 32}, {2 << 20, 64, 32}}));
  EXPECT_FALSE(runs_kernels({{1 << 20, 64, 64}})) << "one run";
  EXPECT_FALSE(runs_kernels({{1 << 20, 64, 32}, {2 << 20, 128, 32}})) << "other distances";
  EXPECT_FALSE(runs_kernels({{1 << 20, 64, 32}, {2 << 20, 64, 16}})) << "other sizes";
  EXPECT_FALSE(runs_kernels({{1 << 20, 64, 24}, {2 << 20, 64, 24}})) << "no multiple of 16";
  EXPECT_FALSE(runs_kernels({{(1 << 20) + 8, 64, 32}, {2 << 20, 64, 32}})) << "not aligned";
}

// ---- Missing waits ----

// A driver that leaves out every wait of a stream, or says of every event that it has happened.
const DriverTable* g_real = nullptr;

std::shared_ptr<device::Device> OpenOver(const DriverTable* table) {
  auto driver = device::Driver::Use(table);
  CAIRN_CHECK(driver.ok());
  auto device = (*driver)->Open(0);
  CAIRN_CHECK(device.ok());
  return *std::move(device);
}

TEST_P(PageMoverTest, AMissingWaitOfASaveOrALoadIsReportedWithBothNamesAtEverySeed) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    FakeDevices fake({.seed = seed, .print_reports = false});
    static DriverTable table;
    table = *fake.table();
    table.wait = [](StreamHandle*, EventHandle*, Failure*) { return Code::kOk; };
    const uint32_t blocks[] = {3, 4, 9};
    {
      Engine engine(&fake, GetParam(), {8, 8}, OpenOver(&table));
      engine.Forward(blocks, 1);
      const auto save = Value(engine.mover().SaveBlocks(engine.native(), blocks));
      EXPECT_THAT(fake.TakeReports(), AllOf(HasSubstr(gather()), HasSubstr("'copy out of a save'")))
          << "seed " << seed;
      const auto transfer = Value(engine.Load(blocks, 100));
      EXPECT_THAT(fake.TakeReports(), AllOf(HasSubstr(scatter()), HasSubstr("'forward'")))
          << "seed " << seed;
      // Without the wait nobody knows that the gather is under way when its memory goes.
      while (fake.control().step()) {
      }
    }
    fake.TakeReports();
  }
}

TEST_P(PageMoverTest, AnEventThatNobodyAskedForIsReportedWhenTheHostReads) {
  FakeDevices fake({.print_reports = false});
  g_real = fake.table();
  static DriverTable table;
  static bool hasty;
  table = *fake.table();
  hasty = true;
  table.query = [](EventHandle* event, Failure* failure) {
    return hasty ? Code::kOk : g_real->query(event, failure);
  };
  const uint32_t blocks[] = {3, 4, 9};
  {
    Engine engine(&fake, GetParam(), {8, 8}, OpenOver(&table));
    engine.Forward(blocks, 1);
    const auto save = Value(engine.mover().SaveBlocks(engine.native(), blocks));
    ASSERT_OK(engine.Await(*save.transfer));
    EXPECT_FALSE(engine.SlotsHold(save, blocks, 1)) << "the work is late";
    EXPECT_THAT(fake.TakeReports(),
                AllOf(HasSubstr("the host's reading"), HasSubstr("'copy out of a save'")));
    while (fake.control().step()) {
    }
  }
  fake.TakeReports();
}

TEST_P(PageMoverTest, SlotsThatAreGivenBackTooEarlyAreReported) {
  FakeDevices fake({.print_reports = false});
  const uint32_t blocks[] = {3, 4, 9};
  {
    Engine engine(&fake, GetParam(), {3, 1});
    const auto save = Value(engine.mover().SaveBlocks(engine.native(), blocks));
    engine.mover().GiveBackSaveSlots(save.slots);
    EXPECT_EQ(fake.TakeReports(), "");
    const auto next = Value(engine.mover().SaveBlocks(engine.native(), blocks));
    EXPECT_THAT(fake.TakeReports(), AllOf(HasSubstr(gather()), HasSubstr("'copy out of a save'")));
  }
  fake.TakeReports();
}

// ---- Failures ----

struct FailingCall {
  const char* operation;
  uint64_t after;
  bool slots_come_back;
};

TEST_P(PageMoverCallTest, ASaveWhoseNthCallFailsIsAnErrorAndTheNextOneWorks) {
  const FailingCall cases[] = {
      {"borrow_stream", 0, true}, {"create_event", 0, true}, {"create_event", 1, true},
      {"copy", 0, true},          {"record", 0, false},      {"wait", 0, true},
      {"copy", 1, true},          {"record", 1, false},
  };
  const uint32_t blocks[] = {3, 4, 9};
  for (const FailingCall& failing : cases) {
    SCOPED_TRACE(failing.operation);
    FakeDevices fake;
    Engine engine(&fake, GetParam(), {6, 1});
    engine.Forward(blocks, 1);
    fake.control().fail(failing.operation, failing.after, 1, Code::kOther);
    EXPECT_THAT(engine.mover().SaveBlocks(engine.native(), blocks).status(),
                StatusIs(StatusCode::kInternal, HasSubstr("a failure that the test asked for")));
    engine.StepAll();
    const auto save = Value(engine.mover().SaveBlocks(engine.native(), blocks));
    EXPECT_EQ(save.slots.size(), 3u);
    ASSERT_OK(engine.Await(*save.transfer));
    EXPECT_TRUE(engine.SlotsHold(save, blocks, 1));
    // Slots of copies that may still be under way are not used again.
    const auto more = Value(engine.mover().SaveBlocks(engine.native(), blocks));
    EXPECT_EQ(more.slots.size(), failing.slots_come_back ? 3u : 0u);
  }
}

TEST_P(PageMoverCallTest, ALoadWhoseNthCallFailsIsAnErrorAndTheNextOneWorks) {
  const FailingCall cases[] = {
      {"create_event", 1, true}, {"wait", 0, true}, {"copy", 0, true}, {"record", 1, false}};
  const uint32_t blocks[] = {3, 4, 9};
  for (const FailingCall& failing : cases) {
    SCOPED_TRACE(failing.operation);
    FakeDevices fake;
    Engine engine(&fake, GetParam(), {1, 6});
    fake.control().fail(failing.operation, failing.after, 1, Code::kOther);
    const auto failed = engine.Load(blocks, 1);
    EXPECT_THAT(failed.ok() ? engine.Await(**failed) : failed.status(),
                StatusIs(StatusCode::kInternal, HasSubstr("a failure that the test asked for")));
    const auto transfer = Value(engine.Load(blocks, 9));
    ASSERT_OK(engine.Await(*transfer));
    for (const uint32_t block : blocks) EXPECT_TRUE(engine.PageHolds(block, 9));
    EXPECT_EQ(engine.mover().AwaitLoadSlots(6, std::chrono::steady_clock::now()).size(),
              failing.slots_come_back ? 6u : 3u);
  }
}

TEST_P(PageMoverCallTest, WorkThatFailsOnTheDeviceEndsItsTransferWithAnError) {
  FakeDevices fake;
  Engine engine(&fake, GetParam());
  const uint32_t blocks[] = {3, 4, 9};
  fake.control().fail("work", 0, 1, Code::kOther);
  const auto transfer = Value(engine.Load(blocks, 1));
  EXPECT_THAT(engine.Await(*transfer), StatusIs(StatusCode::kInternal, _));
  fake.control().fail("work", 1, 1, Code::kOther);  // The gather comes before it.
  const auto save = Value(engine.mover().SaveBlocks(engine.native(), blocks));
  EXPECT_THAT(engine.Await(*save.transfer), StatusIs(StatusCode::kInternal, _));
}

TEST_P(PageMoverTest, OfALostDeviceEverythingEndsWithAnError) {
  FakeDevices fake;
  Engine engine(&fake, GetParam());
  const uint32_t blocks[] = {3, 4, 9};
  const auto save = Value(engine.mover().SaveBlocks(engine.native(), blocks));
  const auto transfer = Value(engine.Load(blocks, 1));
  fake.control().lose(0);
  EXPECT_THAT(engine.Await(*save.transfer), StatusIs(StatusCode::kUnavailable, _));
  EXPECT_THAT(engine.Await(*transfer), StatusIs(StatusCode::kUnavailable, _));
  EXPECT_THAT(engine.mover().SaveBlocks(engine.native(), blocks).status(),
              StatusIs(StatusCode::kUnavailable, _));
  EXPECT_THAT(engine.Load(blocks, 1).status(), StatusIs(StatusCode::kUnavailable, _));
}

TEST_P(PageMoverTest, ABlockThatThePagesDoNotHaveIsNamed) {
  FakeDevices fake;
  Engine engine(&fake, GetParam());
  const uint32_t blocks[] = {3, kBlocks};
  EXPECT_THAT(engine.mover().SaveBlocks(engine.native(), blocks).status(),
              StatusIs(StatusCode::kOutOfRange, HasSubstr("got 16, expected less than 16")));
  EXPECT_THAT(engine.Load(blocks, 1).status(), StatusIs(StatusCode::kOutOfRange, _));
  EXPECT_EQ(engine.mover().AwaitLoadSlots(8, TimePoint::max()).size(), 8u);
}

TEST_P(PageMoverTest, AStreamOfAnotherDeviceIsRefused) {
  FakeDevices fake({.devices = 2});
  const auto other = fake.Open(1);
  const auto stream = *other->NewStream();
  Engine engine(&fake, GetParam());
  const uint32_t blocks[] = {3};
  EXPECT_THAT(engine.mover().SaveBlocks(stream.native(), blocks).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("no such stream")));
  EXPECT_OK(engine.mover().SaveBlocks(engine.native(), blocks));
}

// ---- Too little memory ----

Result<std::unique_ptr<PageMover>> CreateWith(FakeDevices* fake, PageMover::Options options,
                                              device::EventPoller* poller) {
  return PageMover::Create(fake->Open(),
                           Value(OpaqueForm(PagesAt(1 << 20, Layout::kByBlock), nullptr)), options,
                           poller);
}

TEST(PageMoverMemoryTest, RingsAreAsLargeAsThereIsMemory) {
  constexpr uint64_t kGranularity = 64 << 10;  // 42 blocks.
  device::EventPoller poller;
  {
    FakeDevices fake({.memory_bytes = kGranularity, .granularity = kGranularity});
    const auto mover = Value(CreateWith(&fake, {100, 8}, &poller));
    EXPECT_EQ(mover->save_slots(), 25u);
    EXPECT_EQ(mover->load_slots(), 8u);
  }
  {
    FakeDevices fake({.pinned_bytes = 10 * kBlock});
    const auto mover = Value(CreateWith(&fake, {8, 16}, &poller));
    EXPECT_EQ(mover->load_slots(), 8u);
    EXPECT_EQ(mover->save_slots(), 2u);
  }
}

TEST(PageMoverMemoryTest, WithoutMemoryForASlotNothingIsSavedAndWithoutOneForLoadsItDoesNotStart) {
  device::EventPoller poller;
  {
    FakeDevices fake({.pinned_bytes = kBlock});
    const auto device = fake.Open();
    auto stream = *device->NewStream();
    const auto mover = Value(CreateWith(&fake, {8, 8}, &poller));
    EXPECT_EQ(mover->load_slots(), 1u);
    EXPECT_EQ(mover->save_slots(), 0u);
    const uint32_t blocks[] = {1};
    const auto save = Value(mover->SaveBlocks(stream.native(), blocks));
    EXPECT_TRUE(save.slots.empty());
  }
  {
    FakeDevices fake({.pinned_bytes = 0});
    EXPECT_THAT(CreateWith(&fake, {8, 8}, &poller).status(),
                StatusIs(StatusCode::kPermissionDenied, HasSubstr("pins no more memory")));
  }
  FakeDevices fake;
  EXPECT_THAT(CreateWith(&fake, {8, 0}, &poller).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("load_slots")));
}

}  // namespace
}  // namespace cairn::pages
