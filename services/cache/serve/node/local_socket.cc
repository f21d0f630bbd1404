#include "services/cache/serve/node/local_socket.h"

#include <unistd.h>

#include "common/config/config.h"
#include "common/net/operator_path.h"

namespace cairn::cache {
Result<std::unique_ptr<LocalServer>> StartLocalServer(const NodeConfig& config, int port,
                                                      const LocalServer::Dependencies& dependencies,
                                                      uint64_t node_epoch) {
  LocalServerOptions options;
  options.path = config.local_socket;
  if (options.path == "auto") {
    CAIRN_ASSIGN_OR_RETURN(const std::string folder,
                           net::RuntimeFolder("local.socket", /*make=*/true));
    // A data port that is itself a Unix socket has no number.
    options.path = port > 1 ? fmt::format("{}/cairn-{}.sock", folder, port)
                            : fmt::format("{}/cairn-pid{}.sock", folder, getpid());
  }
  // A file's mode cannot name several users: the ids of those who connect are checked instead.
  options.mode = config.local_allow_uids.empty() ? 0600 : 0666;
  for (const std::string& uid : config.local_allow_uids) {
    options.allow_uids.push_back(static_cast<uid_t>(std::stoul(uid)));
  }
  options.ring.scratch_bytes = static_cast<uint32_t>(config.local_scratch);
  // Such a session may see every tenant over gRPC, but shared memory is of one.
  options.require_tenant = config.local_require_tenant || !config.policy.empty();
  options.quota_bytes = config.local_session_quota;
  options.max_sessions = config.engine.max_sessions;
  if (config.local_spin != "auto") {
    CAIRN_ASSIGN_OR_RETURN(options.spin, config::ParseDuration(config.local_spin));
  }
  options.node_epoch = node_epoch;
  return LocalServer::Start(options, dependencies);
}

}  // namespace cairn::cache
