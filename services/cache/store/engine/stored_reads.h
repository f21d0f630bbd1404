#pragma once
// Reads blocks as they are stored, for other members (for_peers.h). A block takes the way of a
// fetched one (fetch_slot.h), but never asks a source. It stays pinned until the reader has sent
// it.
//
// A block that is read past host comes in the form in which it lies on disk. That is one of the two
// forms that host may hold, so every member can store it.
//
// Thread-safe.

#include <memory>

#include "services/cache/store/engine/fetch_slot.h"
#include "services/cache/store/engine/for_peers.h"

namespace cairn::cache {

class StoredReads {
 public:
  explicit StoredReads(const FetchServices& services) : services_(services) {}

  // As PeerEngine::ReadStored. RESOURCE_EXHAUSTED also: there is no memory for another read
  // (fetch_headers), or the block has more parts than a source may bring.
  Result<std::unique_ptr<StoredBlockRead>> Begin(const Fingerprint& fingerprint,
                                                 const BlockKey& key) const;

 private:
  const FetchServices services_;
};

}  // namespace cairn::cache
