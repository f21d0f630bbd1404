#pragma once
// A worker of those that the setting `workers` stands for at one moment.

#include <string>

namespace cairn::router {

// Whether a text of the setting `workers`, or one that begins with it, is a name for DNS.
inline bool IsWorkerName(const std::string& worker) { return worker.starts_with("dns:"); }

struct NamedWorker {
  std::string address = {};  // As WorkerRegistry has it.
  std::string setting = {};  // The text in the setting: the address itself, or a name that has it.
};

}  // namespace cairn::router
