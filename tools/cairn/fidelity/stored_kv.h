#pragma once
// The KV of a context as a cache node stores it: fetched as any reader of the namespace does, and
// decoded.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/common/status.h"
#include "services/worker/session/kv_codec.h"
#include "tools/cairn/fidelity/metrics.h"

namespace cairn::cli {

struct StoredKv {
  // A page a block (services/worker/kv/kv_pool.h), binary16. Empty where the recipe selects: rows
  // of tokens that were forgotten have no numbers.
  std::vector<std::byte> pages;
  // Where the recipe selects, if it was asked for: which tokens each KV head of each layer keeps:
  // [layer * KV heads + head], bit t % 8 of byte t / 8. Else empty.
  std::vector<std::vector<std::byte>> kept;
  uint64_t numbers = 0;            // The numbers of the context's KV, forgotten ones too.
  uint64_t bytes = 0;              // Stored, headers and masks included.
  std::set<format::Codec> codecs;  // The codecs of the slices that were fetched.
};

// Not thread-safe.
class StoredKvReader {
 public:
  // `client` must outlive it. INVALID_ARGUMENT for a namespace that is not a worker's.
  static Result<std::unique_ptr<StoredKvReader>> Create(client::CacheClient& client,
                                                        const NamespaceSpec& spec);

  // `context`: whole blocks. FAILED_PRECONDITION when the node has not all of them.
  // `with_kept`: fills StoredKv::kept, for which selected blocks are fetched.
  Result<StoredKv> Read(std::span<const int32_t> context, bool with_kept = false);

  const worker::KvLayout& kv() const { return kv_; }

 private:
  StoredKvReader(client::CacheClient& client, const Digest& fingerprint, const worker::KvLayout& kv,
                 std::unique_ptr<const worker::KvCodec> codec);
  // All slices of what was matched, to a sink that counts them.
  template <typename Sink>
  Status FetchAll(const client::MatchOutcome& match, size_t blocks, Sink& sink);

  client::CacheClient& client_;
  const Digest fingerprint_;
  const worker::KvLayout kv_;
  const std::unique_ptr<const worker::KvCodec> codec_;
};

// REQUIRES: both are whole pages of this layout, as many.
KvError RelativeError(std::span<const std::byte> exact, std::span<const std::byte> stored,
                      const worker::KvLayout& kv);

}  // namespace cairn::cli
