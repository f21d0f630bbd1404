#pragma once
// A worker of those that the setting `workers` stands for at one moment.

#include <string>

namespace cairn::router {

struct NamedWorker {
  std::string address = {};  // As WorkerRegistry has it.
  std::string setting = {};  // The text in the setting: the address itself, or a name that has it.
};

}  // namespace cairn::router
