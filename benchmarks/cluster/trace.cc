#include "benchmarks/cluster/trace.h"

#include <fstream>

#include "cairn/common/hash.h"

namespace cairn::bench {
namespace {

// The numbers between the brackets of "hash_ids": [1, 2, 3].
Result<std::vector<uint64_t>> HashIds(const std::string& line) {
  const size_t name = line.find("\"hash_ids\"");
  const size_t begin = line.find('[', name);
  const size_t end = line.find(']', begin);
  if (name == std::string::npos || begin == std::string::npos || end == std::string::npos) {
    return InvalidArgument("trace: no hash_ids in '{}'", line.substr(0, 80));
  }
  std::vector<uint64_t> ids;
  const char* at = line.c_str() + begin + 1;
  const char* const last = line.c_str() + end;
  while (at < last) {
    char* next = nullptr;
    ids.push_back(std::strtoull(at, &next, 10));
    if (next == at) return InvalidArgument("trace: bad hash_ids in '{}'", line.substr(0, 80));
    at = next;
    while (at < last && (*at == ',' || *at == ' ')) ++at;
  }
  return ids;
}

}  // namespace

Result<std::vector<std::vector<BlockKey>>> ReadTrace(const std::string& path, size_t requests) {
  std::ifstream in(path);
  if (!in) return InvalidArgument("trace: cannot read '{}'", path);
  std::vector<std::vector<BlockKey>> prompts;
  std::string line;
  while (prompts.size() < requests && std::getline(in, line)) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<uint64_t> ids, HashIds(line));
    std::vector<BlockKey>& keys = prompts.emplace_back();
    Sha256 hash;
    BlockKey before{};
    for (const uint64_t id : ids) {
      for (uint64_t part = 0; part < kTraceTokens / kBlockTokens; ++part) {
        before = hash.Update(before.View()).UpdateU64(id).UpdateU64(part).Finish();
        keys.push_back(before);
      }
    }
  }
  return prompts;
}

}  // namespace cairn::bench
