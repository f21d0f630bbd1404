#include "services/worker/methods/reading/row_index.h"

#include <utility>

#include "services/worker/methods/reading/index_parts.h"

namespace cairn::worker {

uint64_t RowIndex::Bytes(const ReadPolicy& policy, const KvLayout& kv, int64_t rows) {
  const IndexSizes shape{policy, kv, rows};
  const int64_t heads = int64_t{kv.layers} * kv.kv_heads;
  const kernels::CopyRows unit = shape.unit_form();
  int64_t head_bytes = shape.stored() * unit.row_bytes();
  if (policy.has_copy()) head_bytes += rows * shape.value_form().row_bytes();
  if (policy.kind == PolicyKind::kInfiniGen) head_bytes += unit.dim * shape.dim() * 4;
  if (policy.kind == PolicyKind::kClusters) head_bytes += rows * 2;
  return static_cast<uint64_t>(heads * head_bytes);
}

std::unique_ptr<RowIndex> RowIndex::Make(const ReadPolicy& policy, const KvLayout& kv, int64_t rows,
                                         const kernels::Backend& backend,
                                         std::shared_ptr<const KeyRotations> rotations) {
  CAIRN_CHECK((policy.rotation != 0) == (rotations != nullptr));
  const IndexShape shape{{policy, kv, rows}, backend};
  switch (policy.kind) {
    case PolicyKind::kQuest:
    case PolicyKind::kLandmark:
      return MakePageIndex(shape);
    case PolicyKind::kClusters:
      return MakeClusterIndex(shape);
    case PolicyKind::kInfiniGen:
      return MakePartialIndex(shape, std::move(rotations));
    case PolicyKind::kPrecision:
    case PolicyKind::kExactTopK:
    case PolicyKind::kKeysCopy:
      break;
  }
  return MakeCopyIndex(shape);
}

}  // namespace cairn::worker
