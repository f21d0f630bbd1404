#pragma once
// The options of `cairn bench`.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/client/connect.h"
#include "cairn/common/status.h"
#include "tools/cairn/options.h"

namespace cairn::cli::bench {

enum class WorkloadKind { kGet, kPut, kExists, kMatch, kDisk, kPrefetch, kSessions, kTtft };
// "get", "put", ... in the order of the help text.
std::vector<std::string> WorkloadNames();
std::string_view Name(WorkloadKind kind);
// INVALID_ARGUMENT naming the words that are known.
Result<WorkloadKind> ParseWorkload(std::string_view name);

// Flags as they were typed; 0 and "" mean the workload's default.
struct BenchFlags {
  std::string workload;
  std::string cache;
  TlsFlags tls;  // Only with `cache`.
  std::string size;
  std::string data;
  uint32_t layers = 1;
  uint32_t batch = 0;
  uint32_t depth = 0;
  uint32_t clients = 0;
  std::string path = "auto";
  std::string spin = "auto";
  double seconds = 0.5;
  uint32_t repeat = 5;
  bool verify = true;
  bool lookup = false;
  bool lease = true;
  bool lent = false;
  std::string directory;
  std::string model = "build/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  std::string prompt_file;
  std::vector<std::string> tcp;
  bool json = false;
};

struct BenchOptions {
  WorkloadKind workload = WorkloadKind::kGet;
  std::string cache;  // Address of a node; empty: start one.
  TlsFlags tls;
  uint64_t block_bytes = 0;
  uint64_t data_bytes = 0;  // The bytes of all blocks together.
  uint32_t layers = 1;
  uint32_t batch = 1;    // Blocks, or keys, of one call.
  uint32_t depth = 1;    // Calls in flight of each client.
  uint32_t clients = 1;  // Each with a connection of its own.
  client::PathChoice path = client::PathChoice::kAuto;
  // How long both sides of a ring look before they sleep; nullopt: as they decide by themselves.
  std::optional<Duration> spin;
  double seconds = 0.5;
  uint32_t repeat = 5;
  bool verify = true;            // False: neither the reader nor the writer hashes.
  bool lookup = false;           // get: match and lease in each operation; else once before.
  bool lease = true;             // match: take a lease and give it back.
  bool lent = false;             // get: use the bytes where they lie.
  std::string directory;         // For the node's disk tier; empty: a temporary one.
  std::string model;             // ttft: a GGUF file.
  std::string prompt;            // ttft: the text, to be filled in by the caller.
  std::vector<std::string> tcp;  // Congestion controls of further raw TCP yardsticks.

  uint32_t blocks() const { return static_cast<uint32_t>(data_bytes / block_bytes); }
};

// Fills in the workload's defaults. INVALID_ARGUMENT naming the flag, its value and what was
// expected.
Result<BenchOptions> ResolveOptions(const BenchFlags& flags);

}  // namespace cairn::cli::bench
