#pragma once
// Stores parts out of the caller's memory. Knows no Python: runs without the GIL.

#include <memory>
#include <span>
#include <vector>

#include "cairn/client/cache_client.h"
#include "clients/python/src/connection.h"
#include "clients/python/src/sealing.h"

namespace cairn::python {

// Copies the parts into room for them, in the node's memory if it can be reached, and seals them.
// Then only Commit is left. Errors as CacheClient::BeginPush. `contents`: one for each of `rooms`.
Result<std::unique_ptr<client::InPlacePush>> StageParts(client::CacheClient& c,
                                                        const OpenNamespace& ns,
                                                        const Digest& fingerprint,
                                                        std::span<const client::PartToWrite> rooms,
                                                        std::span<const PartContent> contents,
                                                        const client::PushOptions& options);

// Stages and commits parts in groups for which a session can always take room, within one deadline.
// One status per part; `contents`: one for each of `rooms`. Errors as CacheClient::BeginPush, when
// nothing is known to be stored.
Result<std::vector<Status>> PushInBatches(client::CacheClient& c, const OpenNamespace& ns,
                                          const Digest& fingerprint,
                                          std::span<const client::PartToWrite> rooms,
                                          std::span<const PartContent> contents,
                                          client::PushOptions options);

}  // namespace cairn::python
