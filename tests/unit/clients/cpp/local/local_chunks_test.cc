// Blocks in chunks of a GPU, as a client reads them: the node follows a script, and the GPU's
// memory is the host's.

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>
#include <set>

#include "cairn/common/hash.h"
#include "clients/cpp/src/core/rest_sink.h"
#include "clients/cpp/src/local/local_fetch.h"
#include "clients/cpp/src/local/local_path.h"
#include "clients/cpp/src/local/local_rows.h"
#include "clients/cpp/src/local/local_session.h"
#include "common/status/matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/clients/cpp/local/local_node.h"
#include "tests/unit/clients/cpp/parts.h"

namespace cairn::client::local {
namespace {

using ::cairn::testing::StatusIs;
using std::chrono::seconds;
using testing::Chain;
using testing::CheckingSink;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LocalNode;
using ::testing::Pair;
using testing::SmallSpec;

using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;

TimePoint In(Duration d) { return std::chrono::steady_clock::now() + d; }

// Maps descriptors of the host's memory.
class Importer final : public DeviceImporter {
 public:
  std::vector<std::string> uuids() const override { return {LocalNode::kUuid}; }
  Result<std::shared_ptr<const DeviceChunk>> Import(const std::string&, int descriptor,
                                                    uint64_t bytes) override {
    ++imports;
    if (refuses) return Errorf(StatusCode::kResourceExhausted, "no room");
    return std::make_shared<const Chunk>(*this, descriptor, bytes);
  }

  std::atomic<int> imports = 0, mapped = 0, reads = 0;
  std::atomic<bool> refuses = false, breaks = false;

 private:
  class Chunk final : public DeviceChunk {
   public:
    Chunk(Importer& importer, int descriptor, uint64_t bytes) : importer_(importer), bytes_(bytes) {
      base_ = static_cast<std::byte*>(
          mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0));
      CAIRN_CHECK(base_ != MAP_FAILED);
      ++importer_.mapped;
    }
    ~Chunk() override {
      munmap(base_, bytes_);
      --importer_.mapped;
    }
    uint64_t address() const override { return reinterpret_cast<uint64_t>(base_); }
    uint64_t bytes() const override { return bytes_; }
    Status Read(std::span<const Piece> pieces, TimePoint) const override {
      ++importer_.reads;
      if (importer_.breaks) return Errorf(StatusCode::kUnavailable, "the GPU is lost");
      for (const Piece& piece : pieces) {
        CAIRN_CHECK(piece.offset + piece.to.size() <= bytes_);
        if (!piece.to.empty()) std::memcpy(piece.to.data(), base_ + piece.offset, piece.to.size());
      }
      return OkStatus();
    }

   private:
    Importer& importer_;
    const uint64_t bytes_;
    std::byte* base_ = nullptr;
  };
};

// Reads slices where they lie. Those of `unread` it does not look at.
class DeviceSink final : public FetchSink {
 public:
  DeviceSink(const NamespaceSpec& spec, const std::vector<BlockKey>& keys)
      : spec_(spec), keys_(keys) {}
  std::string WantsDevice() const override { return LocalNode::kUuid; }
  Result<std::vector<DeviceRead>> OnDeviceSlices(std::span<const DeviceSlice> slices) override {
    if (!refusal.ok()) return refusal;
    std::vector<DeviceRead> reads;
    for (const DeviceSlice& s : slices) {
      if (s.slice.block == unread) {
        reads.push_back(DeviceRead::kUnread);
        continue;
      }
      const std::span data(reinterpret_cast<const std::byte*>(s.address), s.slice.slice_bytes);
      const bool good = Xxh3(data) == s.slice.xxh3;
      reads.push_back(good ? DeviceRead::kGood : DeviceRead::kWrong);
      if (good) Look(s.slice, data);
      on_device += good;
    }
    return reads;
  }
  Status OnSlice(const SliceInfo& slice, std::span<const std::byte> data) override {
    Look(slice, data);
    ++in_host;
    return OkStatus();
  }
  void OnBlockFailed(uint32_t block, MissReason reason) override { failed[block] = reason; }

  Status refusal;
  uint32_t unread = UINT32_MAX;
  int on_device = 0, in_host = 0, wrong = 0, twice = 0;
  std::map<uint32_t, MissReason> failed;

 private:
  void Look(const SliceInfo& slice, std::span<const std::byte> data) {
    const auto expected = testing::SliceData(spec_, keys_.at(slice.block), slice.layer, slice.part);
    wrong += !std::equal(data.begin(), data.end(), expected.begin(), expected.end());
    twice += !seen_.insert({slice.block, slice.layer}).second;
  }
  const NamespaceSpec& spec_;
  const std::vector<BlockKey>& keys_;
  std::set<std::pair<uint32_t, uint32_t>> seen_;
};

class ClientChunksTest : public ::testing::Test {
 protected:
  void Start(LocalNode::Script script = {.announce_chunk = true}, uint32_t on_device = 8) {
    node_ = std::make_unique<LocalNode>(std::move(script));
    for (uint32_t block = 0; block < chain_.parts.size(); ++block) {
      const PartToPush& part = chain_.parts[block];
      if (block < on_device) {
        node_->KeepOnDevice(part.key, part.rect, part.bytes);
      } else {
        node_->Keep(part.key, part.rect, part.bytes);
      }
    }
  }
  std::shared_ptr<LocalSession> Open(bool imports = true) {
    auto session = LocalSession::Open({.socket = node_->path(),
                                       .token = std::string(16, 't'),
                                       .tenant = "default",
                                       .client = "test",
                                       .node_epoch = 5,
                                       .devices = imports ? importer_ : nullptr},
                                      &SteadyClock::Get(), In(seconds(60)));
    CAIRN_CHECK(session.ok());
    return *session;
  }
  std::shared_ptr<LeasePin> Match(const std::shared_ptr<LocalSession>& session) {
    auto matched = session->Match(fingerprint_, chain_.keys, {}, In(seconds(60)));
    CAIRN_CHECK(matched.ok() && matched->outcome.matched_blocks == 8);
    tiers_ = matched->outcome.tiers;
    return matched->pin;
  }
  Status Fetch(const std::shared_ptr<LeasePin>& pin, FetchSink& sink) {
    const FetchOptions options{.progress = std::chrono::seconds(60)};
    LocalFetch fetch(pin, 8, {}, sink, options, In(seconds(60)));
    const Status status = fetch.Run();
    rest_ = fetch.rest();
    delivered_ = fetch.delivered_of_rest();
    counts_ = fetch.counts();
    return status;
  }
  // The place of a byte of a layer's slice in a part.
  static uint64_t At(uint64_t layer) {
    const uint64_t slice = 2 * 6 * 16 * 8 * 2;
    return format::HeaderBytes(4) + (layer > 2 ? layer - 1 : layer) * slice + 5;
  }
  static constexpr int kSlices = 8 * 4;  // One layer of the four has no bytes.

  const NamespaceSpec spec_ = SmallSpec();
  const Digest fingerprint_ = Fingerprint(spec_);
  const Chain chain_{spec_, 8};
  const std::shared_ptr<Importer> importer_ = std::make_shared<Importer>();
  std::unique_ptr<LocalNode> node_;
  std::vector<TierRun> tiers_;
  Ranges rest_;
  std::vector<SliceInfo> delivered_;
  FetchCounts counts_;
};

TEST_F(ClientChunksTest, ReadersInTheHostGetVerifiedCopies) {
  Start(/*script=*/{.announce_chunk = true}, /*on_device=*/5);
  const auto pin = Match(Open());
  ASSERT_EQ(tiers_.size(), 2u);
  EXPECT_EQ(tiers_[0].tier, TierKind::kDevice);
  CheckingSink sink(spec_, chain_.keys);
  ASSERT_OK(Fetch(pin, sink));
  EXPECT_EQ(sink.slices, uint64_t{kSlices});
  EXPECT_EQ(sink.wrong, 0u);
  EXPECT_THAT(rest_, IsEmpty());
  EXPECT_EQ(counts_.bytes[static_cast<size_t>(TierKind::kDevice)],
            5u * spec_.layout.SliceBytes(0, 0, 6) * 3);
  EXPECT_EQ(importer_->imports, 1);
}

TEST_F(ClientChunksTest, ReadersOnTheGpuReadWhereSlicesLie) {
  Start(/*script=*/{.announce_chunk = true}, /*on_device=*/5);
  DeviceSink sink(spec_, chain_.keys);
  ASSERT_OK(Fetch(Match(Open()), sink));
  EXPECT_EQ(sink.on_device, 5 * 3);
  EXPECT_EQ(sink.in_host, 3 * 4 + 5) << "and slices without bytes";
  EXPECT_EQ(sink.wrong, 0);
  EXPECT_THAT(rest_, IsEmpty());
  EXPECT_EQ(counts_.slices, uint64_t{kSlices});
}

TEST_F(ClientChunksTest, ABitFlipInAChunkLeavesTheBlockToAnotherPathOnce) {
  for (const bool on_device : {false, true}) {
    SCOPED_TRACE(on_device);
    Start();
    node_->Damage(chain_.keys[3], At(3));
    CheckingSink in_host(spec_, chain_.keys);
    DeviceSink there(spec_, chain_.keys);
    FetchSink& sink = on_device ? static_cast<FetchSink&>(there) : in_host;
    ASSERT_OK(Fetch(Match(Open()), sink));
    EXPECT_THAT(rest_, ElementsAre(Pair(3, 4)));
    EXPECT_EQ(counts_.corrupt, 1u);
    // The layers before; the one without bytes has its turn last where the reader is on the GPU.
    EXPECT_EQ(delivered_.size(), on_device ? 2u : 3u);
    EXPECT_EQ(in_host.wrong, 0u);
    EXPECT_THAT(in_host.failed, IsEmpty());
    EXPECT_EQ(there.wrong, 0);
    EXPECT_THAT(there.failed, IsEmpty());
    EXPECT_TRUE(node_->WaitFor([](const auto& counts) { return counts.reports == 1; }));
    // The other path brings the whole block, and the reader gets what it lacks.
    RestSink rest(&sink, delivered_);
    for (uint32_t layer = 0; layer < 4; ++layer) {
      const format::PartRect rect = spec_.layout.WholeRect();
      const SliceInfo slice{.block = 3, .part = rect, .layer = layer};
      const auto data = testing::SliceData(spec_, chain_.keys[3], layer, rect);
      ASSERT_OK(rest.OnSlice(slice, data));
    }
    EXPECT_EQ(on_device ? there.on_device + there.in_host : static_cast<int>(in_host.slices),
              kSlices);
    EXPECT_EQ(there.twice, 0);
  }
}

TEST_F(ClientChunksTest, AWrongHeaderInAChunkLeavesTheBlockToAnotherPath) {
  Start();
  node_->Damage(chain_.keys[2], 8);
  DeviceSink sink(spec_, chain_.keys);
  ASSERT_OK(Fetch(Match(Open()), sink));
  EXPECT_THAT(rest_, ElementsAre(Pair(2, 3)));
  EXPECT_THAT(delivered_, IsEmpty());
  EXPECT_TRUE(node_->WaitFor([](const auto& counts) { return counts.reports == 1; }));
}

TEST_F(ClientChunksTest, WhatTheReaderDoesNotReadComesAnotherWayAndIsNotReported) {
  Start();
  DeviceSink sink(spec_, chain_.keys);
  sink.unread = 6;
  const auto session = Open();
  ASSERT_OK(Fetch(Match(session), sink));
  EXPECT_THAT(rest_, ElementsAre(Pair(6, 7)));
  EXPECT_EQ(counts_.corrupt, 0u);
  ASSERT_OK(session->Exists(fingerprint_, chain_.keys, In(seconds(60))));
  EXPECT_EQ(node_->counts().reports, 0u);
  sink.refusal = Errorf(StatusCode::kInternal, "enough");
  EXPECT_THAT(Fetch(Match(session), sink), StatusIs(StatusCode::kInternal, HasSubstr("enough")));
}

TEST_F(ClientChunksTest, AChunkThatCannotBeImportedOrReadCostsTheWayAlone) {
  for (const bool imports : {false, true}) {
    SCOPED_TRACE(imports);
    Start(/*script=*/{.announce_chunk = true}, /*on_device=*/5);
    importer_->refuses = !imports;
    importer_->breaks = imports;
    CheckingSink sink(spec_, chain_.keys);
    ASSERT_OK(Fetch(Match(Open()), sink));
    EXPECT_THAT(rest_, ElementsAre(Pair(0, 5)));
    EXPECT_EQ(sink.slices, 3u * 4);
    EXPECT_THAT(sink.failed, IsEmpty());
    EXPECT_EQ(counts_.corrupt, 0u);
  }
}

TEST_F(ClientChunksTest, RowsOfBlocksInChunksComeAnotherWay) {
  Start();
  const auto pin = Match(Open());
  class Rows final : public RowSink {
   public:
    Status OnRows(size_t, const RowsInfo&, std::span<const std::byte>) override {
      ++calls;
      return OkStatus();
    }
    void OnRowsFailed(size_t, MissReason) override { ++calls; }
    int calls = 0;
  } sink;
  const RowLayout layout = *RowLayout::Of(spec_);
  const uint64_t mask = 1;
  const std::vector<RowGroup> groups = {{1, 0, {&mask, 1}}};
  const RowReport report =
      pin->rows().Read(*pin, 8, {layout, 0, groups}, sink, {}, In(seconds(60)));
  ASSERT_OK(report.status);
  EXPECT_THAT(report.rest, ElementsAre(0));
  EXPECT_EQ(sink.calls, 0);
}

TEST_F(ClientChunksTest, TheNodeIsToldOfTheGpusOnceIfItHasAny) {
  Start();
  Match(Open());
  EXPECT_TRUE(node_->WaitFor([](const auto& counts) { return counts.devices == 1; }));
  Start({.has_chunks = false}, /*on_device=*/0);
  Match(Open());
  EXPECT_TRUE(node_->WaitFor([](const auto& counts) { return counts.leases == 0; }));
  EXPECT_EQ(node_->counts().devices, 0u);
}

TEST_F(ClientChunksTest, ChunksGoWithTheLastLeaseOfTheSession) {
  Start();
  auto session = Open();
  auto pin = Match(session);
  CheckingSink sink(spec_, chain_.keys);
  ASSERT_OK(Fetch(pin, sink));
  session->Close();
  session.reset();
  EXPECT_EQ(importer_->mapped, 1);
  pin.reset();
  EXPECT_EQ(importer_->mapped, 0);
}

TEST_F(ClientChunksTest, NonsenseAboutChunksEndsTheSession) {
  CheckingSink sink(spec_, chain_.keys);
  Start({.announce_chunk = false});
  EXPECT_THAT(Fetch(Match(Open()), sink),
              StatusIs(StatusCode::kDataLoss, HasSubstr("unknown chunk 7")));
  Start({.announce_chunk = true, .chunk_device = "GPU-2"});
  const auto session = Open();
  const auto matched = session->Match(fingerprint_, chain_.keys, {}, In(seconds(60)));
  EXPECT_FALSE((matched.ok() ? Fetch(matched->pin, sink) : matched.status()).ok());
  EXPECT_FALSE(session->Alive());
  EXPECT_THAT(session->broken(),
              StatusIs(StatusCode::kUnavailable, HasSubstr("'GPU-2', which was not asked")));
  Start({.announce_chunk = false});
  EXPECT_THAT(Fetch(Match(Open(/*imports=*/false)), sink),
              StatusIs(StatusCode::kDataLoss, HasSubstr("said no Devices")));
}

}  // namespace
}  // namespace cairn::client::local
