#pragma once
// Methods that class whole heads by a calibration: retrieval heads keep everything, streaming heads
// the first and the most recent rows. They differ in how the scores were made, and in nothing else.

#include <memory>
#include <string_view>
#include <vector>

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

inline std::vector<ParameterInfo> HeadClassParameters() {
  return {KeepParameter(),
          HeadsParameter(),
          SinksParameter(),
          {"recent", "most recent rows that a streaming head keeps", 0, 1, 4096, 128}};
}

// `name`: of a string that lives on. `v`: of HeadClassParameters.
inline std::unique_ptr<Selection> HeadClasses(std::string_view name, const Values& v,
                                              const kernels::SelectionKernels& k) {
  return Compose({.name = name,
                  .keep = v["keep"],
                  .scorer = RecencyScorer(v["sinks"]),
                  .heads = RankedHeads(v.heads(), v["recent"])},
                 k);
}

}  // namespace cairn::selections
