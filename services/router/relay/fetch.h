#pragma once
// A short question to an engine: its answer in one piece.

#include <functional>
#include <memory>

#include "common/http/client.h"
#include "common/memory/charged_string.h"

namespace cairn::router {

struct Fetched {
  int status = 0;
  ChargedString body = {};
};

// `done` gets the answer, or why there is none, once, on a thread of the client, possibly before
// this returns. The answer counts in the budget of `share`, which holds nothing.
// RESOURCE_EXHAUSTED: there is no room for it.
std::shared_ptr<http::ClientCall> Fetch(http::Client& client, const http::Origin& origin,
                                        http::ClientRequest request, ByteShare share,
                                        std::function<void(Result<Fetched>)> done);

}  // namespace cairn::router
