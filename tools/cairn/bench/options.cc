#include "tools/cairn/bench/options.h"

#include <algorithm>
#include <array>
#include <span>

#include "common/config/config.h"

namespace cairn::cli::bench {
namespace {

struct Defaults {
  WorkloadKind kind;
  std::string_view name;
  uint64_t block_bytes;
  uint64_t data_bytes;
  uint32_t batch;
  uint32_t depth;
  uint32_t clients;
};
constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr std::array<Defaults, 8> kDefaults = {{
    {WorkloadKind::kGet, "get", kMiB, 256 * kMiB, 1, 4, 1},
    {WorkloadKind::kPut, "put", kMiB, 256 * kMiB, 1, 4, 1},
    {WorkloadKind::kExists, "exists", 4 * kKiB, 64 * kMiB, 1024, 4, 1},
    {WorkloadKind::kMatch, "match", 4 * kKiB, 64 * kMiB, 1024, 4, 1},
    {WorkloadKind::kDisk, "disk", kMiB, 512 * kMiB, 16, 2, 1},
    {WorkloadKind::kPrefetch, "prefetch", kMiB, 128 * kMiB, 64, 1, 1},
    {WorkloadKind::kSessions, "sessions", 4 * kKiB, kMiB, 1, 1, 1000},
    {WorkloadKind::kTtft, "ttft", 4 * kKiB, kMiB, 1, 1, 1},
}};
constexpr uint64_t kMaxData = uint64_t{64} << 30;
constexpr uint32_t kMaxThreads = 4096;

const Defaults& Of(WorkloadKind kind) {
  return *std::find_if(kDefaults.begin(), kDefaults.end(),
                       [&](const Defaults& d) { return d.kind == kind; });
}

Result<uint64_t> Bytes(std::string_view flag, const std::string& text, uint64_t otherwise) {
  if (text.empty()) return otherwise;
  auto bytes = config::ParseBytes(text);
  if (!bytes.ok() || *bytes == 0 || *bytes > kMaxData) {
    return InvalidArgument("{}: got '{}', expected a size such as 64KiB, at most 64GiB", flag,
                           text);
  }
  return bytes;
}

Status Limit(std::string_view flag, uint32_t value, uint32_t most) {
  if (value <= most) return OkStatus();
  return InvalidArgument("{}: got {}, expected at most {}", flag, value, most);
}

}  // namespace

std::vector<std::string> WorkloadNames() {
  std::vector<std::string> names;
  names.reserve(std::size(kDefaults));
  for (const Defaults& d : kDefaults) names.emplace_back(d.name);
  return names;
}

std::string_view Name(WorkloadKind kind) { return Of(kind).name; }

Result<WorkloadKind> ParseWorkload(std::string_view name) {
  for (const Defaults& d : kDefaults) {
    if (d.name == name) return d.kind;
  }
  std::string known;
  for (const Defaults& d : kDefaults) known += (known.empty() ? "" : ", ") + std::string(d.name);
  return InvalidArgument("workload: got '{}', expected one of {}", name, known);
}

Result<BenchOptions> ResolveOptions(const BenchFlags& flags) {
  BenchOptions o;
  CAIRN_ASSIGN_OR_RETURN(o.workload, ParseWorkload(flags.workload));
  const Defaults& defaults = Of(o.workload);
  CAIRN_ASSIGN_OR_RETURN(o.block_bytes, Bytes("--size", flags.size, defaults.block_bytes));
  CAIRN_ASSIGN_OR_RETURN(o.data_bytes, Bytes("--data", flags.data, defaults.data_bytes));
  CAIRN_ASSIGN_OR_RETURN(o.path, client::ParsePathChoice(flags.path, "--path"));
  o.cache = flags.cache;
  o.tls = flags.tls;
  if (o.cache.empty() && !(o.tls.ca.empty() && o.tls.cert.empty() && o.tls.server_name.empty())) {
    return InvalidArgument("--tls-*: got one without --cache, expected the address of a node");
  }
  o.layers = flags.layers;
  o.batch = flags.batch == 0 ? defaults.batch : flags.batch;
  o.depth = flags.depth == 0 ? defaults.depth : flags.depth;
  o.clients = flags.clients == 0 ? defaults.clients : flags.clients;
  if (flags.spin != "auto") {
    const auto spin = config::ParseDuration(flags.spin);
    if (!spin.ok() || *spin > std::chrono::seconds(1)) {
      return InvalidArgument("--spin: got '{}', expected auto or a time from 0s to 1s", flags.spin);
    }
    o.spin = *spin;
  }
  o.seconds = flags.seconds;
  o.repeat = flags.repeat;
  o.verify = flags.verify;
  o.lookup = flags.lookup;
  o.lease = flags.lease;
  o.lent = flags.lent;
  o.directory = flags.directory;
  o.model = flags.model;
  o.tcp = flags.tcp;

  CAIRN_RETURN_IF_ERROR(Limit("--batch", o.batch, 65536));
  CAIRN_RETURN_IF_ERROR(Limit("--clients", o.clients, kMaxThreads));
  CAIRN_RETURN_IF_ERROR(Limit("--clients x --depth",
                              static_cast<uint32_t>(std::min<uint64_t>(
                                  uint64_t{o.clients} * o.depth, uint64_t{UINT32_MAX})),
                              kMaxThreads));
  if (o.layers == 0) return InvalidArgument("--layers: got 0, expected at least 1");
  if (!(o.seconds > 0) || o.seconds > 600) {
    return InvalidArgument("--seconds: got {}, expected more than 0, at most 600", o.seconds);
  }
  if (o.repeat == 0) return InvalidArgument("--repeat: got 0, expected at least 1");
  if (uint64_t{o.batch} * o.block_bytes > o.data_bytes) {
    return InvalidArgument("--data: got {}, expected at least one batch, {} blocks of {}",
                           config::FormatBytes(o.data_bytes), o.batch,
                           config::FormatBytes(o.block_bytes));
  }
  // Whole batches.
  o.data_bytes -= o.data_bytes % (uint64_t{o.batch} * o.block_bytes);
  return o;
}

}  // namespace cairn::cli::bench
