#pragma once
// The port at which the router of `cairn up` serves HTTP.

#include <functional>
#include <string>

#include "cairn/common/status.h"

namespace cairn::cli {

// Where it serves if nothing says otherwise, and the port is free.
inline constexpr char kDefaultHttp[] = "127.0.0.1:8000";
inline constexpr char kAnyHttp[] = "127.0.0.1:0";

// The actions of the machine that choosing a port needs.
struct HttpPortActions {
  std::function<Status(const std::string&)> check_free;  // CheckFree.
  // Starts the router with this address. An error may mean that somebody took the port meanwhile.
  std::function<Status(const std::string&)> start;
  // Whether the router that was started last has ended. It is then forgotten.
  std::function<bool()> forget_ended;
};

// Starts the router at kDefaultHttp, or at a free port if that one is taken, also by somebody who
// comes between the look at the port and the router's start. Errors of `start`.
Status StartAtDefaultPort(const HttpPortActions& actions);
// Starts it at an address that a user chose. FAILED_PRECONDITION, which names the flag: the port is
// taken. Other errors of `start`.
Status StartAtGivenPort(const std::string& address, const HttpPortActions& actions);
// The error of a flag --http whose port is taken; OK for others.
Status CheckGivenPort(const std::string& address,
                      const std::function<Status(const std::string&)>& check_free);

}  // namespace cairn::cli
