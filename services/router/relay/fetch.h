#pragma once
// A short question to an engine: its answer in one piece.

#include <functional>
#include <memory>
#include <string>

#include "common/http/client.h"

namespace cairn::router {

struct Fetched {
  int status = 0;
  std::string body = {};
};

// `done` gets the answer, or why there is none, once, on a thread of the client, possibly before
// this returns.
std::shared_ptr<http::ClientCall> Fetch(http::Client& client, const http::Origin& origin,
                                        http::ClientRequest request,
                                        std::function<void(Result<Fetched>)> done);

}  // namespace cairn::router
