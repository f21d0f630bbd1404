#pragma once
// Brings encoded slices of fetched blocks to where forward passes compute, when that is a device:
// they are copied as they are, and verified and decoded there.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cairn/kernels/codec/slice_kernels.h"

namespace cairn::worker {

// Thread-safe.
class SliceLoader {
 public:
  // A layer of a whole block. The memory that pointers and spans name stays as it is until Load
  // returns.
  struct Slice {
    uint64_t stamp = 0;  // KvSequence::PageStamp of its page.
    // Where the layer lies in the host's page: KvLayout::layer_bytes(). Written if the slice is
    // good.
    std::byte* page = nullptr;
    int32_t layer = 0;
    int64_t first_position = 0;  // Position of the block's first token.
    // The encoded bytes: in the host's memory, or, if `address` is not 0, in the device's.
    const std::byte* host = nullptr;
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint64_t xxh3 = 0;  // The hash of the encoded bytes.
  };
  enum class Outcome : uint8_t {
    // In the host's page, and on the device as long as there is room. Rows: in the host's memory.
    kGood = 0,
    kWrong = 1,   // The bytes have another hash, or no encoder writes them.
    kUnread = 2,  // The device has no room, or did not do it. The page means nothing.
  };

  // A layer of a block of which a selection kept some rows of each head
  // (docs/inside/formats/part.md).
  struct RowsOfHead {
    uint64_t offset = 0;  // Where the encoded rows begin in the slice.
    uint64_t bytes = 0;
    int32_t rows = 0;             // At least 1.
    bool sequence_start = false;  // The first of them is the token at position 0.
  };
  struct RowsSlice {
    const std::byte* host = nullptr;
    uint64_t bytes = 0;
    uint64_t xxh3 = 0;
    int32_t layer = 0;
    std::vector<RowsOfHead> heads = {};  // Those to decode.
  };
  // Gets what became of the slice with this number. If it is good, `rows` has for each of its heads
  // the keys, [rows][head_dim], then the values, until the function returns.
  using TakeRows =
      std::function<void(size_t slice, Outcome outcome, std::span<const uint16_t> rows)>;

  virtual ~SliceLoader() = default;
  // The name of the device whose memory it reads: DeviceInfo::uuid.
  virtual std::string device() const = 0;
  // Loads slices of one form, and waits for them. Each (stamp, layer) at most once in a call.
  // Returns what became of each, in order.
  virtual std::vector<Outcome> Load(const kernels::SliceForm& form,
                                    std::span<const Slice> slices) = 0;
  // Decodes rows of selections, and calls `take` for each slice in order, on this thread. `form`
  // has one head.
  virtual void LoadRows(const kernels::SliceForm& form, std::span<const RowsSlice> slices,
                        const TakeRows& take) = 0;
};

}  // namespace cairn::worker
