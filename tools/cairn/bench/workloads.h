#pragma once
// The workloads, one file each.

#include <memory>

#include "tools/cairn/bench/options.h"
#include "tools/cairn/bench/workload.h"

namespace cairn::cli::bench {

// Reads blocks: --batch of them a call.
std::unique_ptr<Workload> NewGet(const BenchOptions& options);
// Stores blocks under new keys, over and over: a full node evicts old ones. Reads all back.
std::unique_ptr<Workload> NewPut(const BenchOptions& options);
// Asks for keys; one of 16 is not there.
std::unique_ptr<Workload> NewExists(const BenchOptions& options);
// Matches chains of --batch keys; every eighth breaks off in the middle.
std::unique_ptr<Workload> NewMatch(const BenchOptions& options);

// Stores blocks until they are on disk, kills the node, and reads them back from disk.
std::unique_ptr<Workload> NewDisk(const BenchOptions& options);
// Fetches a prompt of --batch blocks from disk, and another one after a hint.
std::unique_ptr<Workload> NewPrefetch(const BenchOptions& options);
// Memory of the node for each of --clients sessions that do nothing.
std::unique_ptr<Workload> NewSessions(const BenchOptions& options);
// Time to first token, computed and with a cached prefix, by a worker in this process.
std::unique_ptr<Workload> NewTtft(const BenchOptions& options);

std::unique_ptr<Workload> NewWorkload(const BenchOptions& options);

}  // namespace cairn::cli::bench
