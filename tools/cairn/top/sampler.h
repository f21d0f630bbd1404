#pragma once
// Asks all processes at once.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/cairn/cluster/nodes.h"
#include "tools/cairn/top/snapshot.h"

namespace cairn::cli {

struct TopWorker {
  std::string name, address;
  std::unique_ptr<WorkerLoadSource> source;
};

struct TopRouter {
  std::string address;
  std::unique_ptr<RouterInfoSource> source;  // nullptr: there is none.
};

// Not thread-safe.
class Sampler {
 public:
  // `node_names`: by address; of one cluster it is enough to know some members. A name may be
  // empty: then it is what the node says. `timeout`: of each call to a worker or router.
  Sampler(std::unique_ptr<ClusterNodes> nodes, std::map<std::string, std::string> node_names,
          std::vector<TopWorker> workers, TopRouter router, Duration timeout);
  // Those that do not answer are in it, too.
  Snapshot Take();

 private:
  std::vector<SurveyedNode> AskNodes();

  const std::unique_ptr<ClusterNodes> nodes_;
  const std::map<std::string, std::string> node_names_;
  const std::vector<TopWorker> workers_;
  const TopRouter router_;
  const Duration timeout_;
};

}  // namespace cairn::cli
