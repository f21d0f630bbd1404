#pragma once
// Which rows of a long context are read at each decode step, by name: `precision:near=turbo3,
// rows=0.02`. Names, parameters and sources of all policies; docs/methods/long-context.md has them
// in a table.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"
#include "cairn/kernels/reading/reading_kernels.h"
#include "services/worker/compute/decode_reader.h"
#include "services/worker/kv/kv_pool.h"

namespace cairn::worker {

// How a plane of the near copy is stored.
struct CopyFormat {
  kernels::CopyForm form = kernels::CopyForm::kTurbo;
  int bits = 3;  // kTurbo.

  friend bool operator==(const CopyFormat&, const CopyFormat&) = default;
};
// "turbo3". INVALID_ARGUMENT naming what there is.
Result<CopyFormat> ParseCopyFormat(std::string_view text);
std::string Name(const CopyFormat& format);

// Which row leaves the working set for another one.
enum class VictimRule : uint8_t {
  kLru,      // Least recently chosen.
  kFifo,     // Longest here.
  kCounter,  // Chosen least often; counts are halved when one is full (InfiniGen, section 4.4).
};

enum class PolicyKind : uint8_t {
  kPrecision,
  kExactTopK,
  kKeysCopy,
  kQuest,
  kLandmark,
  kClusters,
  kInfiniGen,
};

// The description of a policy, and its source.
struct PolicyCard {
  PolicyKind kind;
  std::string name;
  std::string meaning;
  std::string source;
  std::string differs;  // From the source.
  // Parameters of its own, in addition to those of all policies.
  std::vector<std::string> parameters;
  std::string rows;  // Its own default of `rows`.
};
std::span<const PolicyCard> PolicyCards();

// A parameter of a policy. Those without an owner belong to all policies.
struct PolicyParameter {
  std::string name;
  std::string meaning;
  std::string standard;  // The default, as it is written.
  std::string expected;  // Values, for errors and documents.
};
std::span<const PolicyParameter> PolicyParameters();

struct ReadPolicy {
  PolicyKind kind = PolicyKind::kPrecision;

  // Parameters of all policies.
  // Share of the context's rows that are read exactly at each step, per layer and KV head.
  double rows = 0.02;
  DecodeReader::Guess query = DecodeReader::Guess::kNone;  // kNone: the layer's own query chooses.
  int64_t sink = 1;  // First rows that are always near, exactly.
  double set = 1;    // Most rows of the working set over the rows of a step.
  VictimRule victim = VictimRule::kLru;
  uint64_t step_bytes = 0;  // Most bytes that a step reads. 0: no limit.

  // Parameters of some policies.
  CopyFormat near_k, near_v;  // precision; keys-copy has near_k only.
  int64_t page = 16;          // quest, landmark: rows of a page.
  double centres = 0.05;      // clusters: centres over rows.
  double partial = 0.3;       // infinigen: share of the columns.
  double alpha = 4;           // infinigen: logits below the largest by more are not read.
  // infinigen: first eight bytes of the SHA-256 of the file with its rotations
  // (rotation_calibration.h), the first one highest. 0: the context's own keys give them.
  uint64_t rotation = 0;

  // The name, and all parameters that the policy has.
  std::string ToString() const;
  const PolicyCard& card() const;
  // Rows that are not read are attended to through the copy.
  bool has_copy() const { return kind == PolicyKind::kPrecision; }
  // Rows that are chosen together.
  int64_t unit_rows() const {
    return kind == PolicyKind::kQuest || kind == PolicyKind::kLandmark ? page : 1;
  }
};

// INVALID_ARGUMENT, which names the policy or parameter, the value and what was expected.
Result<ReadPolicy> ParseReadPolicy(std::string_view text);

// INVALID_ARGUMENT: the model's KV cannot be read in this way, with the reason.
Status CheckReadPolicy(const ReadPolicy& policy, const KvLayout& kv);

}  // namespace cairn::worker
