#pragma once

#include <utility>

#include "cairn/common/status.h"

namespace cairn::pages {

// The value of a result that cannot be an error here.
template <typename T>
T Value(Result<T> result) {
  CAIRN_CHECK(result.ok());
  return *std::move(result);
}

}  // namespace cairn::pages
