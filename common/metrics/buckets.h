#pragma once
// Upper bounds of the histograms that workers and routers both have, so that their panels agree.

#include <vector>

namespace cairn::metrics {

inline const std::vector<double> kRequestSeconds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                    1,     2.5,  5,     10,   30,  60};
inline const std::vector<double> kTokenSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                                  0.1,   0.25,   0.5,   1,    2.5};

}  // namespace cairn::metrics
