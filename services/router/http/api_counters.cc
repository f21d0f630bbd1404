#include "services/router/http/api_counters.h"

namespace cairn::router {

std::string_view Name(Route route) {
  switch (route) {
    case Route::kCompletions:
      return "completions";
    case Route::kChat:
      return "chat";
    case Route::kModels:
      return "models";
    case Route::kHealth:
      return "health";
    case Route::kQuery:
      return "query";
    case Route::kOther:
      return "other";
  }
  return "other";
}

}  // namespace cairn::router
