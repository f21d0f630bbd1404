#pragma once
// The node's side of the same-node path: a Unix socket, and one thread that serves the rings of all
// sessions in turn.
//
// A ring is *hot* as long as its client has asked recently: the thread looks into it without being
// told. When nothing comes for the spin time, hot rings go to sleep one after the other, and then
// the thread sleeps in epoll until a client rings the doorbell.
//
//   gRPC session opens ─ Admit ─► token ─► client says Hello with it ─► Welcome, ring ─► served
//   gRPC session ends ─ Retire ─► Closing ─► the client hangs up ─► what it held ends, and the
//   engine's session with it
//
// A session gives back what it holds when its socket is hung up. The kernel does that when the last
// process that has the socket is gone, so nobody can still be reading or writing. (A process that
// closes the socket and goes on writes only into its tenant's lent memory, where every use is
// verified.) With pidfds the node would learn it earlier when a child of the client keeps the
// socket, but then the child could still be reading.
//
// Thread-safe.

#include <sys/types.h>

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/concurrency/mutex.h"
#include "protocol/shm/socket.h"
#include "services/cache/serve/local/left_chunks.h"
#include "services/cache/serve/local/local_server_session.h"
#include "services/cache/store/engine/cache_engine.h"
#include "services/cache/store/state/memory_account.h"

namespace cairn::cache {

using LocalToken = std::array<uint8_t, 16>;

struct LocalServerOptions {
  std::string path;               // The path of the socket.
  mode_t mode = 0600;             // The mode of its file.
  std::vector<uid_t> allow_uids;  // Users that may connect in addition to this process's own user.
  shm::RingShape ring{.entries = shm::kDefaultEntries, .scratch_bytes = 1u << 20};
  // Bytes that a session may lease and reserve. 0: a quarter of the host tier.
  uint64_t quota_bytes = 0;
  uint32_t max_sessions = 1024;
  Duration spin{-1};  // How long the thread looks for work before it sleeps. < 0: as
                      // shm::SpinTime chooses.
  uint64_t node_epoch = 0;
  // Refuses sessions that named no tenant when they were opened. Else a Hello of theirs may name
  // any.
  bool require_tenant = false;
};

class LocalServer {
 public:
  struct Dependencies {
    CacheEngine* engine = nullptr;  // With an in-place side. All outlive the server.
    HostTier* host = nullptr;
    const Clock* clock = nullptr;
    LocalObserver* observer = nullptr;  // Or none.
    // Rings are charged to it, as MemoryItem::kSessions. nullptr: nothing bounds them.
    MemoryAccount* memory = nullptr;
    DeviceTier* devices = nullptr;  // Or none.
    // Looks at calls of many keys. It stops before the engine ends. nullptr: the thread does.
    Executor* executor = nullptr;
  };

  // FAILED_PRECONDITION: another process listens on the path.
  static Result<std::unique_ptr<LocalServer>> Start(const LocalServerOptions& options,
                                                    const Dependencies& dependencies);
  // Ends all sessions. The socket's file is removed.
  ~LocalServer();

  const std::string& path() const { return options_.path; }

  // A token for the engine's session: connections that show it belong to it. `tenant`: the only one
  // that they may name. Empty: the session named none. `may_write`: whether they may reserve room.
  LocalToken Admit(SessionId session, std::string tenant = {}, bool may_write = true);
  // Makes the token invalid. True: clients that showed it are still connected, and the server will
  // close the engine's session when they are gone. False: the caller must close it.
  bool Retire(const LocalToken& token);

  const LocalStats& stats() const { return stats_; }

 private:
  class Connection;
  struct Admitted {
    SessionId session = 0;
    std::string tenant = {};
    bool may_write = true;
    uint32_t connections = 0;
    bool retired = false;
  };

  LocalServer(const LocalServerOptions& options, const Dependencies& dependencies);
  Status Open();
  void Run();
  // The thread's steps.
  bool ServeHot();
  void PutHotToSleep();
  bool WaitForEvents(int timeout_ms);
  // Takes some of those who connect. They are known to wait as long as epoll says so.
  void Accept();
  // Listens, or does not: while the process has no descriptor for those who connect, epoll would
  // name them at every turn.
  void SetListening(bool listening);
  // Looks for what sessions wait for, a bounded number of times. Sets next_look_.
  void RetryWaiting(TimePoint now);
  void OnSocket(Connection* connection, uint32_t events);
  void OnMessage(Connection* connection, std::span<const std::byte> message);
  // The GPUs whose memory it can import.
  void OnDevices(Connection* connection, std::span<const std::byte> message);
  void Greet(Connection* connection, std::span<const std::byte> message);
  // UNAUTHENTICATED: no session has the token. PERMISSION_DENIED: its session is for another
  // tenant.
  Result<Admitted*> FindAdmitted(const LocalToken& token, std::string_view tenant)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Result<LocalServerSessionOptions> CheckHello(const shm::DecodedHello& hello,
                                               Connection* connection);
  void MakeHot(Connection* connection);
  // Stops serving it and tells it why. Its leases and reservations stay until it hangs up.
  void Condemn(Connection* connection, const Status& why);
  void Remove(Connection* connection);
  void Tick();
  void Wake();

  const LocalServerOptions options_;
  const Dependencies dependencies_;
  const Duration spin_;
  LocalStats stats_;

  // The thread owns these as soon as it runs.
  shm::Descriptor listening_, epoll_, wake_;
  LocalBuffers buffers_;
  LeftChunks left_chunks_;  // Outlives the sessions.
  absl::flat_hash_map<Connection*, std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> hot_;
  std::deque<Connection*> waiting_;         // Have descriptors that wait. By turns.
  TimePoint next_look_ = TimePoint::max();  // For what they wait for.
  bool listening_now_ = true;
  std::optional<TimePoint> warned_;  // When a failed accept was last logged.
  uint32_t seen_memories_ = 0;

  Mutex mu_;
  absl::flat_hash_map<LocalToken, Admitted> admitted_ ABSL_GUARDED_BY(mu_);
  bool retired_any_ ABSL_GUARDED_BY(mu_) = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace cairn::cache
