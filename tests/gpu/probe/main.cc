// cairn_gpu_probe: one step of tests/gpu/run.sh on one device. Rows go to stdout (rows.h).
//
//   cairn_gpu_probe PROBE [--library PATH] [--device N] [--tiny]
//
// PROBE: one of kProbes. Exit codes: 0; 1: it failed, and stderr says how; 2: wrong arguments; 3:
// there is no driver or no device.

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tests/gpu/probe/probes.h"

namespace cairn::gpu {
namespace {

constexpr int kFailed = 1, kUsage = 2, kNoDevice = 3;

const std::map<std::string, Status (*)(const ProbeOptions&)> kProbes = {
    {"device", ProbeDevice},
    {"limits", ProbeLimits},
    {"slices", ProbeSlices},
    {"attention", ProbeAttention},
    {"forward", ProbeForward},
    {"save", ProbeSave},
    {"tier", ProbeTier},
    {"chunks", ProbeChunks},
    {"neighbour", ProbeNeighbour},
    {"faults", ProbeFaults},
    // Another one starts it.
    {"copy-for-ever", CopyForEver}};

int Usage(const std::string& wrong) {
  std::string names;
  for (const auto& [name, _] : kProbes) names += (names.empty() ? "" : ", ") + name;
  std::fprintf(stderr,
               "cairn_gpu_probe: %s, expected PROBE [--library PATH] [--device N] [--tiny], with "
               "PROBE one of %s\n",
               wrong.c_str(), names.c_str());
  return kUsage;
}

int Run(const std::vector<std::string>& args) {
  if (args.empty()) return Usage("got no probe");
  ProbeOptions options;
  int socket = -1;
  for (size_t i = 1; i < args.size(); ++i) {
    if (args[i] == "--tiny") {
      options.tiny = true;
    } else if (i + 1 == args.size()) {
      return Usage("got '" + args[i] + "'");
    } else if (args[i] == "--library") {
      options.library = args[++i];
    } else if (args[i] == "--device") {
      options.ordinal = static_cast<uint32_t>(std::strtoul(args[++i].c_str(), nullptr, 10));
    } else if (args[i] == "--socket") {  // For read-chunk, which chunks starts.
      socket = std::atoi(args[++i].c_str());
    } else {
      return Usage("got '" + args[i] + "'");
    }
  }
  const auto probe = kProbes.find(args[0]);
  const bool reads = args[0] == "read-chunk" && socket >= 0;
  if (!reads && probe == kProbes.end()) return Usage("got '" + args[0] + "'");
  const Status status = reads ? ReadChunk(options, socket) : probe->second(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", args[0].c_str(), Message(status).c_str());
  // Only the first probe tells a machine without a device from a failure.
  const bool missing =
      status.code() == StatusCode::kFailedPrecondition || status.code() == StatusCode::kNotFound;
  return args[0] == "device" && missing ? kNoDevice : kFailed;
}

}  // namespace
}  // namespace cairn::gpu

int main(int count, char** arguments) {
  return cairn::gpu::Run({arguments + 1, arguments + count});
}
