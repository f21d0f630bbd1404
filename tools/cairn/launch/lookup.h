#pragma once
// Finds the process that a command talks to when its command line names no address.

#include <functional>
#include <string>

#include "cairn/common/status.h"

namespace cairn::cli {

inline constexpr char kDefaultNode[] = "127.0.0.1:7400";

enum class Seek {
  kNode,      // The first node that runs.
  kOnlyNode,  // The same of commands that change the node: an error if there are several.
  kNodes,     // All nodes that run.
  kWorker,    // The first worker that runs and answers requests. A node at the default address
              // stands for "nothing of `cairn up` is meant".
};

struct DefaultTarget {
  std::string address = {};  // Several with commas. Empty: no worker is meant.
  std::string note = {};     // For stderr, one line. Empty: nothing that may surprise.
  std::string model = {};    // For the worker: path of its model.
};

// The parts of the machine that the lookup needs.
struct LookupMachine {
  std::function<bool(const std::string&)> listens;  // SomebodyListens.
  // Directory of the state of `cairn up`. It need not exist.
  std::function<Result<std::string>()> directory;
};
// This machine, and the directory of `cairn up` without --dir.
LookupMachine ThisMachine();

// kDefaultNode if somebody listens there. Otherwise what `cairn up` started. Errors, which say both
// and what to do: NOT_FOUND, nothing was started; UNAVAILABLE, it has ended or does not serve yet;
// FAILED_PRECONDITION, there are several, for kOnlyNode, or the state is not this user's;
// INVALID_ARGUMENT, the state cannot be read.
Result<DefaultTarget> FindDefault(Seek seek, const LookupMachine& machine);

}  // namespace cairn::cli
