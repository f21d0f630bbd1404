#pragma once
// Parts that were copied out of the caller's memory and are not stored yet. Knows no Python: runs
// without the GIL.

#include <memory>
#include <span>
#include <vector>

#include "cairn/client/cache_client.h"
#include "clients/python/src/connection.h"
#include "clients/python/src/sealing.h"

namespace cairn::python {

// Used by one thread at a time, and must not outlive its client.
class StagedPush {
 public:
  // Copies the parts into room for them: the node's memory where it can be reached. Errors as
  // CacheClient::BeginPush. REQUIRES: as many contents as parts.
  static Result<std::unique_ptr<StagedPush>> Make(client::CacheClient& client,
                                                  const OpenNamespace& ns,
                                                  const Digest& fingerprint,
                                                  std::span<const client::PartToWrite> parts,
                                                  std::span<const PartContent> contents,
                                                  const client::PushOptions& options);
  // Hashes the parts where they lie and stores them. One status a part, as CacheClient::Push. Once.
  Result<std::vector<Status>> Commit();

 private:
  struct Part {
    std::span<std::byte> room;  // Empty: there is nothing to write.
    format::PartRect rect;
    std::vector<uint64_t> lengths;
  };

  StagedPush(std::unique_ptr<client::InPlacePush> push, format::Codec codec, uint16_t block_tokens)
      : push_(std::move(push)), codec_(codec), block_tokens_(block_tokens) {}

  const std::unique_ptr<client::InPlacePush> push_;
  const format::Codec codec_;
  const uint16_t block_tokens_;
  std::vector<Part> parts_;
};

}  // namespace cairn::python
