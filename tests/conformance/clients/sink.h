#pragma once
// A reader that takes slices in each of the ways that a client offers.

#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "cairn/client/cache_client.h"
#include "gtest/gtest.h"
#include "tests/unit/clients/cpp/parts.h"

namespace cairn::client {

// Takes slices as they come and compares them.
class Sink final : public FetchSink {
 public:
  enum class Wish { kOwnBuffer, kDestination, kPieces, kLent };
  Sink(const NamespaceSpec& spec, const std::vector<BlockKey>& keys, Wish wish)
      : spec_(spec), keys_(keys), wish_(wish) {}

  std::span<std::byte> Destination(const SliceInfo& slice) override {
    if (wish_ != Wish::kDestination) return {};
    auto& buffer = buffers_[{slice.block, slice.layer, slice.part}];
    buffer.resize(slice.slice_bytes);
    return buffer;
  }
  // Unequal, one empty, apart from each other in memory.
  std::vector<std::span<std::byte>> Pieces(const SliceInfo& slice) override {
    if (wish_ != Wish::kPieces) return {};
    auto& buffer = buffers_[{slice.block, slice.layer, slice.part}];
    buffer.resize(slice.slice_bytes + 2 * kGap);
    const uint64_t first = slice.slice_bytes / 3, rest = slice.slice_bytes - first;
    const std::span<std::byte> all(buffer);
    return {all.first(first), all.subspan(first, 0), all.subspan(first + kGap, rest)};
  }
  Status OnSlice(const SliceInfo& slice, std::span<const std::byte> data) override {
    if (wish_ != Wish::kPieces || !data.empty() || slice.slice_bytes == 0) return Take(slice, data);
    auto& buffer = buffers_.at({slice.block, slice.layer, slice.part});
    const auto at = buffer.begin() + static_cast<ptrdiff_t>(slice.slice_bytes / 3);
    buffer.erase(at, at + kGap);
    buffer.resize(slice.slice_bytes);
    return Take(slice, buffer);
  }
  bool WantsLent() const override { return wish_ == Wish::kLent; }
  Status OnLentSlice(const SliceInfo& slice, std::span<const std::byte> data,
                     std::shared_ptr<const LentHold> hold) override {
    EXPECT_TRUE(hold->Pinned());
    // Slices of a part follow each other: base + offset.
    uint64_t offset = 0;
    for (uint32_t layer = slice.part.layer_begin; layer < slice.layer; ++layer) {
      offset += spec_.layout.SliceBytes(layer, slice.part.head_begin, slice.part.head_end);
    }
    const auto [it, first] = bases_.try_emplace({slice.block, slice.part}, data.data() - offset);
    EXPECT_TRUE(first || it->second == data.data() - offset);
    lent_bytes += data.size();
    holds_.push_back(std::move(hold));
    return Take(slice, data);
  }
  void OnBlockFailed(uint32_t block, MissReason reason) override { failed.emplace(block, reason); }

  size_t slices = 0, wrong = 0, twice = 0;
  uint64_t lent_bytes = 0;
  std::multimap<uint32_t, MissReason> failed;

 private:
  static constexpr ptrdiff_t kGap = 100;
  using Key = std::tuple<uint32_t, uint32_t, format::PartRect>;
  Status Take(const SliceInfo& slice, std::span<const std::byte> data) {
    ++slices;
    if (!seen_.insert({slice.block, slice.layer, slice.part}).second) ++twice;
    const auto expected = testing::SliceData(spec_, keys_.at(slice.block), slice.layer, slice.part);
    if (!std::equal(data.begin(), data.end(), expected.begin(), expected.end())) ++wrong;
    return OkStatus();
  }
  const NamespaceSpec& spec_;
  const std::vector<BlockKey>& keys_;
  const Wish wish_;
  std::map<Key, std::vector<std::byte>> buffers_;
  std::set<Key> seen_;
  std::map<std::pair<uint32_t, format::PartRect>, const std::byte*> bases_;
  std::vector<std::shared_ptr<const LentHold>> holds_;
};

}  // namespace cairn::client
