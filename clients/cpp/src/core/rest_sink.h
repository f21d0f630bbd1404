#pragma once
// The sink of a fetch that another path began: slices that it delivered do not come twice.

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "cairn/client/cache_client.h"

namespace cairn::client {

// Used by one thread. `sink` must outlive it.
class RestSink final : public FetchSink {
 public:
  RestSink(FetchSink* sink, std::span<const SliceInfo> delivered) : sink_(*sink) {
    for (const SliceInfo& slice : delivered) delivered_.insert(KeyOf(slice));
  }

  std::span<std::byte> Destination(const SliceInfo& slice) override {
    return Came(slice) ? std::span<std::byte>() : sink_.Destination(slice);
  }
  std::vector<std::span<std::byte>> Pieces(const SliceInfo& slice) override {
    return Came(slice) ? std::vector<std::span<std::byte>>() : sink_.Pieces(slice);
  }
  Status OnSlice(const SliceInfo& slice, std::span<const std::byte> data) override {
    return Came(slice) ? OkStatus() : sink_.OnSlice(slice, data);
  }
  void OnBlockFailed(uint32_t block, MissReason reason) override {
    sink_.OnBlockFailed(block, reason);
  }

 private:
  using Key = std::tuple<uint32_t, uint32_t, format::PartRect>;
  static Key KeyOf(const SliceInfo& slice) { return {slice.block, slice.layer, slice.part}; }
  bool Came(const SliceInfo& slice) const { return delivered_.contains(KeyOf(slice)); }

  FetchSink& sink_;
  std::set<Key> delivered_;
};

}  // namespace cairn::client
