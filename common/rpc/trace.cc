#include "common/rpc/trace.h"

#include <algorithm>

namespace cairn::rpc {

bool IsTrace(std::string_view trace) {
  return !trace.empty() && trace.size() <= 64 &&
         std::all_of(trace.begin(), trace.end(), [](char c) {
           return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                  c == '-';
         });
}

}  // namespace cairn::rpc
