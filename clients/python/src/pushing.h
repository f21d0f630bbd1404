#pragma once
// Stores parts out of the caller's memory in one call. Runs without the GIL.

#include <span>
#include <vector>

#include "cairn/client/cache_client.h"
#include "clients/python/src/connection.h"
#include "clients/python/src/part_source.h"

namespace cairn::python {

// As many parts at a time as a session may surely take room for, within one deadline. One status a
// part. Errors as CacheClient::BeginPush, when nothing is known to be stored.
Result<std::vector<Status>> PushInBatches(client::CacheClient& c, const OpenNamespace& ns,
                                          const Digest& fingerprint, const PushedParts& parts,
                                          client::PushOptions options);

}  // namespace cairn::python
