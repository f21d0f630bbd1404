#pragma once
// What a calibration says of a model's heads.

#include <cstdint>
#include <vector>

namespace cairn::selections {

// By layer and KV head; larger: the head looks further back. Only their order matters. Who uses
// them has checked that they are of its model and shape, and finite.
struct HeadScores {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  std::vector<float> scores;  // [layers][kv_heads]

  bool operator==(const HeadScores&) const = default;
};

}  // namespace cairn::selections
