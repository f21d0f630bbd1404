#pragma once
// A whole engine on tiny tiers, the namespaces that a target uses, and a naive model of them: which
// bytes were committed since the last drop. Every byte that the engine gives is looked up there.
//
// The bytes of a slice say who wrote them: its first byte is the version, a number that each write
// of a block gets, and the others follow from namespace, block, layer, head and version. So bytes
// of another tenant, block, layer or dropped generation are seen, and a mixture of two writers too.
//
// Not thread-safe.

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/keys/checked_namespace.h"
#include "common/keys/part_codec.h"
#include "common/log/log.h"
#include "services/cache/store/engine/cache_engine.h"
#include "services/cache/store/tier/testing/fake_tier.h"
#include "tests/fuzz/input.h"

namespace cairn::cache::fuzz {

using cairn::fuzz::Expect;
using cairn::fuzz::Get;

inline constexpr uint32_t kChain = 6;  // Blocks of a chain; block n follows n - 1 in its chain.
inline constexpr uint32_t kBlocks = 3 * kChain;
inline constexpr uint32_t kLayers = 2, kHeads = 2, kTokens = 16, kDim = 16;
inline constexpr uint32_t kMaxOpaque = 2000;

// A namespace, and what was committed in it since it was dropped last.
struct Space {
  NamespaceSpec spec;
  Fingerprint fingerprint;
  uint8_t number = 0;
  uint32_t generation = 0;
  std::shared_ptr<const codecs::Codec> on_disk = nullptr;  // The codec on disk of a ladder.
  // (rectangle, version) by block.
  std::map<uint32_t, std::set<std::pair<format::PartRect, uint8_t>>> committed = {};

  bool Covers(uint32_t n) const {
    const auto it = committed.find(n);
    if (it == committed.end()) return false;
    std::set<std::pair<uint32_t, uint32_t>> cells;
    for (const auto& [rect, version] : it->second) {
      for (uint32_t l = rect.layer_begin; l < rect.layer_end; ++l) {
        for (uint32_t h = rect.head_begin; h < rect.head_end; ++h) cells.emplace(l, h);
      }
    }
    return cells.size() == spec.layout.WholeRect().Cells();
  }
};

inline BlockKey KeyOf(uint32_t n) {
  BlockKey key;
  key.bytes.fill(static_cast<uint8_t>(n * 37 + 1));
  key.bytes[8] = static_cast<uint8_t>(n);
  return key;
}
inline uint32_t FirstPosition(uint32_t n) { return n % kChain * kTokens; }

// Bytes that look random, and are finite numbers as halves.
inline const std::vector<std::byte>& Pattern() {
  static const std::vector<std::byte> pattern = [] {
    std::vector<std::byte> bytes(64 << 10);
    std::mt19937 random(1);
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(random() & (i % 2 == 1 ? 0x3f : 0xff));
    }
    return bytes;
  }();
  return pattern;
}

// The content of version `version` of a slice: its own piece of the pattern.
inline std::vector<std::byte> SliceOf(const Space& space, uint32_t n, uint8_t version,
                                      uint32_t layer, uint32_t head, size_t bytes) {
  const uint32_t who = (space.number * kBlocks + n) * 4 + layer * 2 + head;
  const size_t start = (who * 514u + version * 2u) % (Pattern().size() - 2 * kMaxOpaque) & ~1u;
  Expect(bytes >= 1 && bytes <= 2 * kMaxOpaque);
  std::vector<std::byte> slice(bytes);
  std::memcpy(slice.data(), Pattern().data() + start, bytes);
  slice[0] = static_cast<std::byte>(version);
  return slice;
}

// A sealed part. `opaque_bytes`: of its slice where the layout does not say.
inline std::vector<std::byte> PartOf(const Space& space, uint32_t n, uint8_t version,
                                     const format::PartRect& rect, uint64_t opaque_bytes) {
  const Layout& layout = space.spec.layout;
  std::vector<uint64_t> lengths;
  for (uint32_t l = rect.layer_begin; l < rect.layer_end; ++l) {
    lengths.push_back(layout.IsNative() ? layout.SliceBytes(l, rect.head_begin, rect.head_end)
                                        : opaque_bytes);
  }
  std::vector<std::byte> part(format::PartBytes(lengths));
  size_t at = format::HeaderBytes(static_cast<uint32_t>(lengths.size()));
  for (uint32_t l = rect.layer_begin; l < rect.layer_end; ++l) {
    const uint64_t length = lengths[l - rect.layer_begin];
    const auto slice = SliceOf(space, n, version, l, rect.head_begin, length);
    std::copy(slice.begin(), slice.end(), part.begin() + static_cast<ptrdiff_t>(at));
    at += length;
  }
  const auto codec = layout.IsNative() ? format::Codec::kRaw : format::Codec::kOpaque;
  format::SealPart(part, codec, rect, kTokens, lengths);
  return part;
}

// As the ladder's codec for the disk stores the slice.
inline std::vector<std::byte> Encoded(const Space& space, uint32_t n, const SliceInfo& info,
                                      const std::vector<std::byte>& raw) {
  const int64_t heads = info.part.head_end - info.part.head_begin;
  const int64_t numbers = heads * kTokens * kDim;
  std::vector<uint16_t> halves(raw.size() / 2);
  std::memcpy(halves.data(), raw.data(), raw.size());
  const codecs::Plane k{halves.data(), heads, kDim, kTokens * kDim, kDim};
  const codecs::Plane v{halves.data() + numbers, heads, kDim, kTokens * kDim, kDim};
  const codecs::SliceShape shape = codecs::ShapeOf(k, v, kTokens);
  const codecs::SlicePlace place{info.layer, FirstPosition(n)};
  std::vector<std::byte> out(space.on_disk->MaxEncodedBytes(shape, place));
  std::vector<std::byte> scratch(space.on_disk->ScratchBytes(shape));
  const auto result = space.on_disk->Encode(k, v, kTokens, place, out, scratch);
  Expect(result.status == codecs::CodecStatus::kOk);
  out.resize(result.bytes);
  return out;
}

// Ends the program unless the slice is one that was committed for block n.
inline void CheckSlice(const Space& space, uint32_t n, const FetchedSlice& slice) {
  Expect(!slice.data.empty() && slice.data.size() == slice.slice_bytes);
  Expect(Xxh3(slice.data) == slice.xxh3);
  const auto it = space.committed.find(n);
  Expect(it != space.committed.end());
  for (const auto& [rect, version] : it->second) {
    if (rect != slice.part) continue;
    const Layout& layout = space.spec.layout;
    const bool raw = slice.codec == format::Codec::kRaw || slice.codec == format::Codec::kOpaque;
    const size_t bytes = layout.IsNative()
                             ? layout.SliceBytes(slice.layer, rect.head_begin, rect.head_end)
                             : slice.data.size();
    auto want = SliceOf(space, n, version, slice.layer, rect.head_begin, bytes);
    if (!raw) want = Encoded(space, n, slice, want);
    if (want.size() == slice.data.size() &&
        std::memcmp(want.data(), slice.data.data(), want.size()) == 0) {
      return;
    }
  }
  Expect(false);
}

struct World {
  explicit World(bool with_disk) {
    log::Configure({.level = log::Level::kError});
    Layout native{.block_tokens = kTokens, .form = {}};
    native.form = NativeLayout{.groups = {{.count = kLayers,
                                           .planes = {{"k", kHeads, kDim, DType::kF16},
                                                      {"v", kHeads, kDim, DType::kF16}}}},
                               .kv_heads = kHeads};
    Layout opaque{.block_tokens = kTokens, .form = {}};
    opaque.form = OpaqueLayout{.description = "d", .max_part_bytes = kMaxOpaque, .parts = kHeads};
    AddSpace("a", native, "raw");
    AddSpace("b", native, "raw");
    AddSpace("a", opaque, "raw");
    AddSpace("b", native, "host=raw>disk=int8:group=16");
    if (with_disk) {
      disk = std::make_unique<testing::FakeTier>(
          testing::FakeTierOptions{.capacity_bytes = 80 << 10, .max_extent_bytes = 64 << 10});
    }
    Start();
  }

  void AddSpace(const char* tenant, const Layout& layout, const char* recipe) {
    Space space;
    space.spec.tenant = tenant;
    space.spec.model = "m";
    space.spec.revision = "1";
    space.spec.numerics = "n";
    space.spec.layout = layout;
    space.spec.recipe = recipe;
    space.number = static_cast<uint8_t>(spaces.size());
    const auto checked = Get(CheckNamespace(space.spec));
    space.fingerprint = checked.fingerprint;
    const PartCodecs codecs = Get(PartCodecsOf(checked));
    if (codecs.IsLadder()) space.on_disk = codecs.rungs.back();
    spaces.push_back(std::move(space));
  }

  void Start() {
    host = Get(
        HostTier::Create({.capacity_bytes = 96 << 10, .prefault = false, .check_memory = false}));
    Tiers tiers(host.get());
    tiers.Add(disk.get());
    EngineOptions options;
    options.max_transfer_bytes = 24 << 10;
    options.max_index_bytes = 1 << 20;
    options.mover_queue_capacity = 8;
    options.watch_queue_capacity = 16;
    options.max_sessions = 3;
    options.max_leases_per_session = 6;
    options.max_namespaces = 6;
    engine = Get(CacheEngine::Create(options, {.tiers = tiers,
                                               .clock = &clock,
                                               .executor = &executor,
                                               .node_id = "node",
                                               .node_epoch = ++epoch}));
    for (const Space& space : spaces) (void)engine->OpenNamespace(space.spec, false);
  }
  // As after kill -9: what was not flushed is lost. Work that was under way is done before, because
  // its callbacks must not come after the engine.
  void Crash() {
    disk->HoldCallbacks(false);
    Settle();
    engine.reset();
    host.reset();
    disk->Crash();
    Start();
  }
  void Settle() {
    const auto held = [this] { return disk == nullptr ? 0 : disk->RunHeld(); };
    while (executor.RunAll() + held() > 0) {
    }
  }

  FakeClock clock;
  ManualExecutor executor;
  std::vector<Space> spaces;
  std::unique_ptr<testing::FakeTier> disk;  // nullptr: none.
  std::unique_ptr<HostTier> host;
  std::unique_ptr<CacheEngine> engine;
  uint64_t epoch = 0;
};

}  // namespace cairn::cache::fuzz
