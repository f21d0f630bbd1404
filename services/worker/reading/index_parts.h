#pragma once
// Code that the kinds of indexes share (row_index.h): sizes, planes of rows in the form of a codec,
// and keys that come in parts.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cairn/kernels/backend.h"
#include "cairn/kernels/thread_pool.h"
#include "kernels/codecs/turbo/turbo_plane.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/reading/key_rotation.h"
#include "services/worker/reading/read_policy.h"
#include "services/worker/reading/row_index.h"

namespace cairn::worker {

struct IndexSizes {
  const ReadPolicy& policy;
  const KvLayout& kv;
  int64_t rows;  // Rows of the context.

  int64_t dim() const { return kv.head_dim; }
  // The units that are ranked, and how many rows of them are stored.
  int64_t units() const;
  int64_t stored() const;
  // How the units are stored, and the values of the copy.
  kernels::CopyRows unit_form() const;
  kernels::CopyRows value_form() const;
};

// The shape of the contexts that an index is made for. The backend outlives it.
struct IndexShape : IndexSizes {
  const kernels::Backend& backend;
};

std::unique_ptr<RowIndex> MakeCopyIndex(const IndexShape& shape);
std::unique_ptr<RowIndex> MakePageIndex(const IndexShape& shape);
std::unique_ptr<RowIndex> MakeClusterIndex(const IndexShape& shape);
std::unique_ptr<RowIndex> MakePartialIndex(const IndexShape& shape,
                                           std::shared_ptr<const KeyRotations> rotations);

// Rows of one plane of all heads of all layers, each head's one after the other. Threads may write
// different rows at the same time.
class IndexPlanes {
 public:
  IndexPlanes(const KvLayout& kv, int64_t rows, const kernels::CopyRows& form,
              codecs::PlaneRole role);
  kernels::CopyRows Rows(int layer, int head) const;
  // Stores rows of binary16 from this one on. False: a number is not finite.
  bool Encode(const kernels::CodecKernels& codec, int layer, int head, int64_t row,
              const kernels::HalfRows& x);

 private:
  size_t Head(int layer, int head) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(heads_) + static_cast<size_t>(head);
  }
  const int32_t heads_;
  const kernels::CopyRows form_;
  const size_t head_bytes_;
  std::vector<std::byte> bytes_;
  std::vector<uint32_t> signs_;  // kTurbo: [layers][dim].
};

// Rows of one head of one block.
kernels::HalfRows BlockRows(const std::byte* data, const KvLayout& kv);

// Appends the keys of a head in float32, [rows][dim].
void AppendKeys(const LayerView& part, int head, const kernels::Backend& backend,
                std::vector<float>& keys);

// Keys of a layer of which an index needs all at once, and which come in parts: until they are all
// here, they are kept in binary16. Not thread-safe, but the function Of may be called by several
// threads.
class LayerKeys {
 public:
  LayerKeys(const KvLayout& kv, int64_t rows) : kv_(kv), rows_(rows) {}
  // True: all are here.
  bool Add(const LayerView& part);
  // [rows][dim]
  std::vector<float> Of(int head, const kernels::Backend& backend) const;
  void Clear() { heads_ = {}; }

 private:
  const KvLayout kv_;
  const int64_t rows_;
  std::vector<std::vector<uint16_t>> heads_;  // [kv_heads][rows][dim]
};

// Calls make(piece) for all pieces. False: one of them said so.
bool MakeAll(kernels::ThreadPool& pool, int64_t pieces, const std::function<bool(int64_t)>& make);

}  // namespace cairn::worker
