#pragma once
// Converts between KV pages and the slices that a cache node stores, as a recipe says.
//
// A layer of a page consists of the planes K and V in binary16 (kv/kv_pool.h). The recipe raw
// stores exactly that. With any other recipe a codec of kernels/codecs makes it smaller. With a
// ladder, pushed parts have the codec of the first rung, and fetched parts may have that of any
// rung: each part names its own.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"
#include "cairn/kernels/codec/slice_kernels.h"
#include "common/keys/checked_namespace.h"
#include "kernels/codecs/codec.h"
#include "services/worker/kv/kv_pool.h"

namespace cairn::worker {

// Thread-safe. After Create only the counters change.
class KvCodec {
 public:
  // `clock`, which must outlive the codec, measures Work::seconds. Errors: those of PartCodecsOf.
  // REQUIRES: the layout of `ns` is that of `kv`.
  static Result<std::unique_ptr<KvCodec>> Create(const CheckedNamespace& ns, const KvLayout& kv,
                                                 const Clock& clock);

  // The codec of pushed blocks.
  format::Codec id() const { return rungs_.front().id; }
  bool raw() const { return id() == format::Codec::kRaw; }
  // True when decoded numbers differ from the encoded ones. KV that was computed over them has a
  // lineage of its own.
  bool lossy() const { return lossy_; }

  // The largest size in bytes of a layer's slice, as it is pushed, of a whole block that begins at
  // this position. For raw: its size.
  uint64_t MaxSliceBytes(int layer, uint64_t first_position) const;
  // True if a slice of a whole block in this codec may have this number of bytes. False for every
  // codec that the recipe does not have.
  bool IsSliceBytes(format::Codec id, int layer, uint64_t first_position, uint64_t bytes) const;
  bool Has(format::Codec id) const { return Find(id) != nullptr; }
  // How whole slices in this codec, and pages, look to kernels of a device. Null: these do not have
  // the codec, or there are no whole slices (selected()).
  const kernels::SliceForm* FormOf(format::Codec id) const;
  // Counts what was encoded elsewhere.
  void CountEncoded(uint64_t bytes_in, uint64_t bytes_out, Duration time) const;
  // Counts slices that were decoded elsewhere. REQUIRES: Has(id).
  void CountDecoded(format::Codec id, uint64_t bytes_in, uint64_t bytes_out, Duration time) const;
  // The approximate size of one layer of any block, for estimates of transfers.
  uint64_t typical_slice_bytes(bool from_disk) const {
    return (from_disk ? rungs_.back() : rungs_.front()).typical_slice_bytes;
  }

  // Working memory of one thread.
  using Scratch = std::vector<std::byte>;

  // `page`: the layer's planes; `out`: MaxSliceBytes. Returns the bytes written. INVALID_ARGUMENT,
  // which names their number: the KV has NaN or infinities. Such a block is not stored.
  Result<size_t> Encode(int layer, uint64_t first_position, std::span<const std::byte> page,
                        std::span<std::byte> out, Scratch& scratch) const;
  // DATA_LOSS: no encoder of this codec wrote the bytes. `page` is then unspecified. REQUIRES:
  // Has(id).
  Status Decode(format::Codec id, int layer, uint64_t first_position, std::span<const std::byte> in,
                std::span<std::byte> page, Scratch& scratch) const;

  // True when blocks hold only the rows that a selection kept. The functions below are for
  // session/selected_slice_codec.h.
  bool selected() const { return selected_; }
  // Rows of one head, stored as a slice of their own.
  struct RowsPlace {
    int layer = 0;
    bool sequence_start = false;  // The first of them is the token at position 0.
    int64_t rows = 0;             // At least 1.
  };
  // Most bytes; the bytes when rows_fixed_size().
  size_t MaxRowsBytes(const RowsPlace& place) const;
  bool rows_fixed_size() const { return rungs_.front().codec->FixedSize(); }
  // How such rows look to kernels of a device: slices of one head. Null: these do not have the
  // codec. REQUIRES: selected().
  const kernels::SliceForm* RowsForm() const {
    return rungs_.front().form ? &*rungs_.front().form : nullptr;
  }
  // Keys and values: [rows][head_dim] each. Errors as Encode and Decode.
  Result<size_t> EncodeRows(const RowsPlace& place, const uint16_t* k, const uint16_t* v,
                            std::span<std::byte> out, Scratch& scratch) const;
  Status DecodeRows(const RowsPlace& place, std::span<const std::byte> in, uint16_t* k, uint16_t* v,
                    Scratch& scratch) const;

  // Totals since start, of the slices that could be encoded or decoded.
  struct Work {
    uint64_t bytes_in = 0;
    uint64_t bytes_out = 0;
    double seconds = 0;  // Seconds that threads spent on it.
    Work& operator+=(const Work& other) {
      bytes_in += other.bytes_in;
      bytes_out += other.bytes_out;
      seconds += other.seconds;
      return *this;
    }
  };
  struct Stats {
    std::string codec;  // Its name, without parameters.
    Work encode;
    Work decode;
  };
  // One a codec of the recipe.
  std::vector<Stats> GetStats() const;

 private:
  // Counters of the work. The atomics are relaxed, and each number stands for itself.
  class Counter {
   public:
    void Add(uint64_t bytes_in, uint64_t bytes_out, Duration time);
    Work Total() const;

   private:
    std::atomic<uint64_t> bytes_in_{0};
    std::atomic<uint64_t> bytes_out_{0};
    std::atomic<int64_t> nanoseconds_{0};
  };
  struct Counters {
    Counter encode, decode;
  };
  struct Rung {
    format::Codec id = format::Codec::kRaw;
    std::shared_ptr<const codecs::Codec> codec;
    uint64_t typical_slice_bytes = 0;
    std::optional<kernels::SliceForm> form;  // The form of whole slices, or of kept rows.
    std::unique_ptr<Counters> counters = std::make_unique<Counters>();
  };
  KvCodec(const KvLayout& kv, bool lossy, bool selected, std::vector<Rung> rungs,
          const Clock& clock);
  const Rung* Find(format::Codec id) const;

  const KvLayout kv_;
  const bool lossy_;
  const bool selected_;
  const std::vector<Rung> rungs_;  // One, or as a ladder has them.
  const codecs::SliceShape shape_;
  const Clock& clock_;
};

}  // namespace cairn::worker
