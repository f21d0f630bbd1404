#pragma once
// A bare client over gRPC: raw stubs, a connection and a node session of its own, and whatever the
// caller puts into a request. No retry, no circuit breaker and no check of what the caller sends.

#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/v1/admin.grpc.pb.h"
#include "cairn/v1/cache.grpc.pb.h"
#include "common/concurrency/mutex.h"

namespace cairn::fault {

// The context of one call: it ends at its deadline, and when `stop` is requested.
class CallContext {
 public:
  explicit CallContext(const std::stop_token& stop, Duration deadline = std::chrono::seconds(20));
  grpc::ClientContext* get() { return &context_; }

 private:
  grpc::ClientContext context_;
  std::stop_callback<std::function<void()>> cancel_;
};

// A block, or one part of it, as the client sends it.
struct PartToStore {
  std::string key;
  std::string bytes;   // A sealed part.
  v1::PartRect rect;   // In the layout's grid.
  std::string parent;  // Empty: a root.
};

// Thread-safe.
class WireClient {
 public:
  // Opens a session. `tenant`: what the session says that it is for. Empty: it does not say.
  WireClient(const std::string& address, const std::stop_token& stop,
             const std::string& tenant = "");
  ~WireClient();
  // Ends the session.
  void Close();

  bool open() const { return !hello_.session_id().empty(); }
  const v1::SessionEvent& hello() const { return hello_; }
  const std::string& session() const { return hello_.session_id(); }
  v1::Cache::Stub& cache() { return *cache_; }
  v1::Admin::Stub& admin() { return *admin_; }
  const std::stop_token& stop() const { return stop_; }

  // The fingerprint. Empty: refused, and `error` says why.
  std::string Open(const v1::NamespaceSpec& spec, grpc::Status* error = nullptr);
  // One result per part. Empty: the call failed.
  std::vector<v1::PartResult> Reserve(const std::string& fingerprint,
                                      const std::vector<PartToStore>& parts, uint32_t ttl_ms = 0);
  // Reserves, sends and commits. One code per part; -1: the call failed.
  std::vector<int> Store(const std::string& fingerprint, const std::vector<PartToStore>& parts);
  // Why the node refused a part or a call of Reserve or Store, the last time it did.
  std::string last_refusal() const;
  // `keys` follow each other.
  grpc::Status Match(const std::string& fingerprint, const std::string& keys, uint32_t ttl_ms,
                     v1::MatchResponse* response);
  // How many blocks matched, without a lease.
  uint32_t Matched(const std::string& fingerprint, const std::string& keys);
  void Release(uint64_t lease);
  // The data of each block that came whole; a block that failed has none.
  std::vector<std::string> Fetch(uint64_t lease, uint32_t blocks);
  v1::StatResponse Stat();
  grpc::Status Flush(Duration deadline = std::chrono::seconds(20));
  grpc::Status DropTenant(const std::string& tenant);
  grpc::Status BumpEpoch(const std::string& fingerprint);

 private:
  std::vector<int> StoreSome(const std::string& fingerprint, const std::vector<PartToStore>& parts);

  void NoteRefusal(const std::string& text);

  const std::stop_token stop_;
  mutable Mutex mu_;
  std::string last_refusal_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Cache::Stub> cache_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::SessionEvent>> events_;
  v1::SessionEvent hello_;
};

// ---- What clients store ----

std::string KeyOf(std::string_view tag, uint64_t number);
// All of these once had one hash in the node's index, whatever its seed was: two of their words
// make both products of the hash zero.
std::string CollidingKey(uint64_t number);
v1::PartRect RectOf(uint32_t layer_begin, uint32_t layer_end, uint32_t head_begin,
                    uint32_t head_end);
v1::NamespaceSpec OpaqueSpec(const std::string& tenant, const std::string& revision = "1",
                             uint32_t parts = 1);
// `groups` are of one head; see AddGroup.
v1::NamespaceSpec NativeSpec(const std::string& tenant, const std::string& revision,
                             uint32_t kv_heads, uint32_t block_tokens, const std::string& recipe);
void AddGroup(v1::NamespaceSpec* spec, uint32_t layers, const std::vector<v1::Plane>& planes);
v1::Plane PlaneOf(const std::string& name, uint32_t heads, uint32_t dim, v1::DType dtype);
// A sealed part whose slices are these, with right hashes.
std::string SealedPart(const std::vector<std::string>& slices, uint16_t codec,
                       const v1::PartRect& rect, uint16_t tokens = 16);
// A part of one opaque slice.
std::string OpaquePart(const std::string& slice, uint32_t head = 0);

}  // namespace cairn::fault
