// Blocks out of chunks that others can write to, into an engine's pages, on the fake device.

#include "clients/pages/chunk_loader.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>

#include "cairn/common/hash.h"
#include "clients/pages/coded_form.h"
#include "common/status/matchers.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/support/fake_kernels/slice_kernels.h"
#include "tests/unit/clients/pages/value.h"

namespace cairn::pages {
namespace {

using device::Code;
using device::fake::FakeDevices;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Outcome = ChunkLoader::Outcome;

constexpr uint32_t kLayers = 3, kBlocks = 8;
constexpr uint64_t kPage = 512, kBlock = kLayers * kPage;

// A node's chunk with blocks at odd addresses, and an engine's pages.
class ChunkLoaderTest : public ::testing::Test {
 protected:
  explicit ChunkLoaderTest(uint32_t slots = 2) {
    kernels::testing::AddSliceKernels(fake_.control());
    device_ = fake_.Open();
    chunk_ = *device_->Allocate(kBlocks * (kBlock + 1), false);
    pages_ = *device_->Allocate(kBlocks * kBlock, false);
    stream_ = *device_->NewStream();
    std::mt19937 random(7);
    auto* const bytes = reinterpret_cast<uint8_t*>(chunk_.address());
    for (uint64_t i = 0; i < kBlocks * (kBlock + 1); ++i) bytes[i] = static_cast<uint8_t>(random());
    EnginePages pages{{}, kBlocks};
    for (uint64_t i = 0; i < kLayers; ++i) {
      pages.runs.push_back({pages_.address() + i * kBlocks * kPage, kPage, kPage});
    }
    kernels_ = SliceKernelsOf(device_.get());
    form_ = Value(OpaqueForm(pages, kernels_));
    mover_ =
        Value(PageMover::Create(device_, Value(OpaqueForm(pages, kernels_)), {1, 1}, &poller_));
    loader_ = Make(slots, ChunkLoader::kPatience);
    thread_ = std::make_unique<device::PollingThread>(&poller_, std::chrono::microseconds(50));
  }
  ~ChunkLoaderTest() override {
    EXPECT_TRUE(loader_->AwaitEnd());
    const auto end = device_->NewEvent();
    if (end.ok() && stream_.Record(*end).ok()) (void)end->Synchronize();
    thread_.reset();
  }

  std::unique_ptr<ChunkLoader> Make(uint32_t slots, Duration patience) {
    return Value(ChunkLoader::Create(device_, *form_, *kernels_, slots, &poller_, patience));
  }
  // The engine works until `ready`.
  void EngineWorksUntil(std::atomic<bool>* ready) {
    const device::fake::Range page = {pages_.address(), kPage};
    EXPECT_EQ(fake_.control().issue_when(
                  stream_.native(), "forward", nullptr, 0, &page, 1,
                  [](void* done) { return static_cast<std::atomic<bool>*>(done)->load(); },
                  [](void*) {}, [](void*) {}, ready),
              Code::kOk);
  }

  uint64_t At(uint32_t i) const { return chunk_.address() + 1 + i * (kBlock + 1); }
  ChunkLoader::Source Source(uint32_t i, uint32_t block) const {
    const auto* const bytes = reinterpret_cast<const std::byte*>(At(i));
    return {At(i), kBlock, Xxh3({bytes, kBlock}), block, 0};
  }
  bool PageHolds(uint32_t block, uint32_t i) {
    bool holds = true;
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
      const auto* const page = reinterpret_cast<const std::byte*>(
          pages_.address() + layer * kBlocks * kPage + block * kPage);
      fake_.HostReads(page, kPage);
      holds = holds && std::memcmp(page, reinterpret_cast<const std::byte*>(At(i)) + layer * kPage,
                                   kPage) == 0;
    }
    return holds;
  }
  std::vector<Outcome> Load(std::span<const ChunkLoader::Source> sources) {
    return loader_->Load(*Value(mover_->MakeFence(stream_.native())), sources);
  }

  FakeDevices fake_{{.seed = 11}};
  std::shared_ptr<device::Device> device_;
  device::DeviceMemory chunk_, pages_;
  device::Stream stream_;
  const kernels::batch::SliceTable* kernels_ = nullptr;
  std::unique_ptr<BlockForm> form_;
  device::EventPoller poller_;
  std::unique_ptr<PageMover> mover_;
  std::unique_ptr<ChunkLoader> loader_;
  std::unique_ptr<device::PollingThread> thread_;
};

TEST_F(ChunkLoaderTest, BlocksGetToTheirPagesBehindTheEnginesWork) {
  // More than fit into a batch. Their pages' last user is still at work.
  std::vector<ChunkLoader::Source> sources;
  for (uint32_t i = 0; i < 5; ++i) sources.push_back(Source(i, 7 - i));
  EXPECT_OK(stream_.Fill("forward", pages_.address(), 0x55, kBlocks * kBlock));
  EXPECT_THAT(Load(sources), Each(Outcome::kGood));
  for (uint32_t i = 0; i < 5; ++i) EXPECT_TRUE(PageHolds(7 - i, i)) << i;
}

TEST_F(ChunkLoaderTest, AWrongByteIsFoundAndOtherBlocksAreGood) {
  const ChunkLoader::Source sources[] = {Source(0, 1), Source(1, 2), Source(2, 3)};
  reinterpret_cast<uint8_t*>(At(1))[kBlock - 1] ^= 1;
  EXPECT_THAT(Load(sources), ElementsAre(Outcome::kGood, Outcome::kWrong, Outcome::kGood));
  // The word of faults is cleared before its slot is used again.
  const ChunkLoader::Source again[] = {Source(2, 1), Source(3, 2)};
  EXPECT_THAT(Load(again), ElementsAre(Outcome::kGood, Outcome::kGood));
  EXPECT_TRUE(PageHolds(1, 2));
  EXPECT_TRUE(PageHolds(2, 3));
}

TEST_F(ChunkLoaderTest, ABlockOfAnotherLengthIsNotRead) {
  ChunkLoader::Source sources[] = {Source(0, 1), Source(1, 2)};
  sources[0].bytes = kBlock - 16;
  EXPECT_THAT(Load(sources), ElementsAre(Outcome::kUnread, Outcome::kGood));
}

TEST_F(ChunkLoaderTest, WhatTheDeviceRefusesIsUnreadAndTheNextLoadWorks) {
  const ChunkLoader::Source sources[] = {Source(0, 1), Source(1, 2)};
  for (const char* const operation : {"copy", "wait"}) {
    const auto fence = Value(mover_->MakeFence(stream_.native()));
    fake_.control().fail(operation, 0, 1, Code::kOther);
    EXPECT_THAT(loader_->Load(*fence, sources), Each(Outcome::kUnread)) << operation;
    EXPECT_THAT(Load(sources), Each(Outcome::kGood)) << operation;
  }
}

TEST_F(ChunkLoaderTest, OfALostDeviceNothingIsRead) {
  const ChunkLoader::Source sources[] = {Source(0, 1)};
  const auto fence = Value(mover_->MakeFence(stream_.native()));
  fake_.control().lose(0);
  EXPECT_THAT(loader_->Load(*fence, sources), Each(Outcome::kUnread));
}

TEST_F(ChunkLoaderTest, AnEngineThatHangsCostsThePatienceAndNothingIsOnItsWayAfterwards) {
  const ChunkLoader::Source sources[] = {Source(0, 1)};
  std::atomic<bool> ready = false;
  EngineWorksUntil(&ready);
  const auto loader = Make(1, std::chrono::milliseconds(20));
  const auto fence = Value(mover_->MakeFence(stream_.native()));
  const uint64_t copies = fake_.stats().copies;
  EXPECT_THAT(loader->Load(*fence, sources), Each(Outcome::kUnread));
  EXPECT_FALSE(loader->AwaitEnd());
  ready = true;
  while (!loader->AwaitEnd()) {  // On a busy machine its short patience ends several times.
  }
  EXPECT_EQ(fake_.stats().copies, copies);
  const auto next = Value(mover_->MakeFence(stream_.native()));
  EXPECT_THAT(loader->Load(*next, sources), Each(Outcome::kGood));
}

TEST_F(ChunkLoaderTest, WhileADeviceHangsNobodyElseWaits) {
  const ChunkLoader::Source sources[] = {Source(0, 1)};
  const auto loader = Make(1, std::chrono::milliseconds(20));
  const auto fence = Value(mover_->MakeFence(stream_.native()));
  thread_.reset();  // Nobody asks for events: nothing seems to happen.
  poller_.SetWake(nullptr);
  EXPECT_THAT(loader->Load(*fence, sources), Each(Outcome::kUnread));
  // Well below a second patience, and it launches nothing.
  const uint64_t left = fake_.stats().work_left;
  EXPECT_THAT(loader->Load(*fence, sources), Each(Outcome::kUnread));
  EXPECT_EQ(fake_.stats().work_left, left);
  EXPECT_FALSE(loader->AwaitEnd());
  // A new thread would only be woken by the first event after none were left.
  while (!loader->AwaitEnd()) poller_.Step();
}

TEST_F(ChunkLoaderTest, EncodedBlocksAreDecodedOutOfTheChunk) {
  constexpr uint32_t kHeads = 2, kDim = 64, kTokens = 16;
  constexpr uint64_t kNumbers = kHeads * kDim * kTokens;
  const auto codec = Value(BlockCodec::Create("int8", {1, kHeads, kDim, kDim, kTokens}));
  // Two blocks; keys and values of a token next to each other.
  const auto memory = *device_->Allocate(2 * 2 * kNumbers * 2, false);
  CodedPages pages;
  pages.layers = {{memory.address(), memory.address() + kDim * 2, 2 * kNumbers * 2}};
  pages.blocks = 2;
  pages.k = pages.v = {kTokens * 2 * kDim, 2 * kDim};
  auto* const numbers = reinterpret_cast<uint16_t*>(memory.address());
  for (uint64_t i = 0; i < 2 * kNumbers; ++i) numbers[i] = 0x3c00;  // 1.0, which int8 has exactly.
  const auto mover = Value(
      PageMover::Create(device_, Value(CodedForm(codec, pages, *kernels_)), {1, 1}, &poller_));
  const auto form = Value(CodedForm(codec, pages, *kernels_));
  const auto loader = Value(ChunkLoader::Create(device_, *form, *kernels_, 1, &poller_));

  const uint32_t block[] = {0};
  const uint64_t position[] = {kTokens};
  const auto save = Value(mover->SaveBlocks(stream_.native(), block, position));
  while (!save.transfer->Await(std::chrono::steady_clock::now() + std::chrono::seconds(1))) {
  }
  const auto encoded = mover->save_slot(save.slots.front()).first(codec.BlockBytes(kTokens));
  std::memcpy(reinterpret_cast<void*>(At(0)), encoded.data(), encoded.size());
  const ChunkLoader::Source source = {At(0), encoded.size(), Xxh3(encoded), 1, kTokens};
  const auto fence = Value(mover->MakeFence(stream_.native()));
  EXPECT_THAT(loader->Load(*fence, {&source, 1}), ElementsAre(Outcome::kGood));
  fake_.HostReads(numbers + 2 * kNumbers, 2 * kNumbers * 2);
  for (uint64_t i = 0; i < 2 * kNumbers; ++i) ASSERT_EQ(numbers[2 * kNumbers + i], 0x3c00) << i;
}

}  // namespace
}  // namespace cairn::pages
