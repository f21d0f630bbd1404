#pragma once
// The scores that a calibration gives to the heads of a model.

#include <cstdint>
#include <vector>

namespace cairn::selections {

// One score per layer and KV head. A larger score means that the head looks further back. To
// methods that class heads only the order matters, to headkv the proportions do. The caller must
// have checked that they are finite and belong to its model and shape.
struct HeadScores {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  std::vector<float> scores;  // [layers][kv_heads]

  bool operator==(const HeadScores&) const = default;
};

}  // namespace cairn::selections
