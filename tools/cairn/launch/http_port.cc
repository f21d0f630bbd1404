#include "tools/cairn/launch/http_port.h"

namespace cairn::cli {

Status CheckGivenPort(const std::string& address,
                      const std::function<Status(const std::string&)>& check_free) {
  const Status free = check_free(address);
  if (free.ok()) return free;
  return Errorf(free.code(), "--http: {}; give another port, or 0 for a free one", Message(free));
}

Status StartAtDefaultPort(const HttpPortActions& actions) {
  if (actions.check_free(kDefaultHttp).ok()) {
    const Status started = actions.start(kDefaultHttp);
    // It may have ended for any reason: only one that finds the port taken now is another `up`.
    if (started.ok() || started.code() == StatusCode::kCancelled || !actions.forget_ended() ||
        actions.check_free(kDefaultHttp).ok()) {
      return started;
    }
  }
  return actions.start(kAnyHttp);
}

Status StartAtGivenPort(const std::string& address, const HttpPortActions& actions) {
  CAIRN_RETURN_IF_ERROR(CheckGivenPort(address, actions.check_free));
  const Status started = actions.start(address);
  if (started.ok() || started.code() == StatusCode::kCancelled || !actions.forget_ended()) {
    return started;
  }
  CAIRN_RETURN_IF_ERROR(CheckGivenPort(address, actions.check_free));
  return started;
}

}  // namespace cairn::cli
