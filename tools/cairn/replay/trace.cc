#include "tools/cairn/replay/trace.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "tools/cairn/output/json.h"

namespace cairn::cli::replay {
namespace {

constexpr double kSoonSeconds = 900;
constexpr uint64_t kMostTokens = 1u << 30;

// Reads one line after the other and keeps what later lines must agree with.
class Reader {
 public:
  Reader(std::string name, uint32_t block_tokens) : name_(std::move(name)) {
    trace_.block_tokens = block_tokens;
  }

  Status Add(const std::string& text) {
    ++line_;
    const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return Wrong("line", "no JSON object", "one object per line");
    TraceRequest request;
    CAIRN_ASSIGN_OR_RETURN(const uint64_t stamp, Number(json, "timestamp", 0, UINT32_MAX));
    CAIRN_ASSIGN_OR_RETURN(const uint64_t tokens, Number(json, "input_length", 1, kMostTokens));
    if (json.contains("output_length")) {
      CAIRN_RETURN_IF_ERROR(Number(json, "output_length", 0, kMostTokens).status());
    }
    request.seconds = static_cast<double>(stamp) / 1000;
    if (request.seconds < last_) {
      return Wrong("timestamp", std::to_string(stamp), "no less than the line before");
    }
    last_ = request.seconds;
    request.input_tokens = static_cast<uint32_t>(tokens);
    CAIRN_RETURN_IF_ERROR(ReadBlocks(json, &request));
    trace_.blocks += request.blocks.size();
    trace_.tokens += tokens;
    trace_.requests.push_back(std::move(request));
    return OkStatus();
  }

  Result<Trace> Finish() {
    if (trace_.requests.empty()) {
      return InvalidArgument("{}: got no line, expected requests", name_);
    }
    trace_.distinct_blocks = static_cast<uint32_t>(numbers_.size());
    Spread();
    return std::move(trace_);
  }

 private:
  Status Wrong(const char* field, const std::string& got, const std::string& expected) const {
    return InvalidArgument("{}, line {}: field '{}': got {}, expected {}", name_, line_, field, got,
                           expected);
  }

  Result<uint64_t> Number(const Json& json, const char* field, uint64_t low, uint64_t high) const {
    const std::string expected =
        "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
    const auto at = json.find(field);
    if (at == json.end()) return Wrong(field, "nothing", expected);
    if (!at->is_number_unsigned()) return Wrong(field, Dump(*at), expected);
    const auto value = at->get<uint64_t>();
    if (value < low || value > high) return Wrong(field, Dump(*at), expected);
    return value;
  }

  Status ReadBlocks(const Json& json, TraceRequest* request) {
    const auto ids = json.find("hash_ids");
    if (ids == json.end() || !ids->is_array()) {
      return Wrong("hash_ids", ids == json.end() ? "nothing" : Dump(*ids), "a list of numbers");
    }
    const uint64_t expected =
        (uint64_t{request->input_tokens} + trace_.block_tokens - 1) / trace_.block_tokens;
    if (ids->size() != expected) {
      return Wrong("hash_ids", std::to_string(ids->size()) + " numbers",
                   std::to_string(expected) + ", one for each " +
                       std::to_string(trace_.block_tokens) + " tokens of input_length");
    }
    std::optional<uint32_t> parent;
    for (const Json& id : *ids) {
      if (!id.is_number_unsigned()) return Wrong("hash_ids", Dump(id), "whole numbers from 0");
      const auto [at, first] =
          numbers_.try_emplace(id.get<uint64_t>(), static_cast<uint32_t>(numbers_.size()));
      if (first) {
        parents_.push_back(parent);
      } else if (parents_[at->second] != parent) {
        return Wrong("hash_ids", Dump(id) + " after another block than before",
                     "each number after the same one always");
      }
      parent = at->second;
      request->blocks.push_back(*parent);
    }
    return OkStatus();
  }

  void Spread() {
    auto& requests = trace_.requests;
    const double start = requests.front().seconds;
    double gap = 1;
    for (size_t begin = 0, end = 0; begin < requests.size(); begin = end) {
      const double stamp = requests[begin].seconds;
      while (end < requests.size() && requests[end].seconds == stamp) ++end;
      // The last stamp lasts as long as the one before.
      if (end < requests.size()) gap = requests[end].seconds - stamp;
      for (size_t i = begin; i < end; ++i) {
        requests[i].seconds =
            stamp - start + gap * static_cast<double>(i - begin) / static_cast<double>(end - begin);
      }
    }
  }

  const std::string name_;
  Trace trace_;
  size_t line_ = 0;
  double last_ = 0;
  std::unordered_map<uint64_t, uint32_t> numbers_;
  std::vector<std::optional<uint32_t>> parents_;
};

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

Result<Trace> ReadTrace(std::istream& in, const std::string& name, uint32_t block_tokens) {
  Reader reader(name, block_tokens);
  for (std::string line; std::getline(in, line);) CAIRN_RETURN_IF_ERROR(reader.Add(line));
  if (in.bad()) return Errorf(StatusCode::kUnavailable, "{}: cannot be read", name);
  return reader.Finish();
}

void AddHints(Trace* trace, uint32_t percent) {
  auto& requests = trace->requests;
  // The request whose last full block it is, and that nobody went on with yet.
  std::unordered_map<uint32_t, size_t> ends;
  std::vector<std::optional<double>> goes_on(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto& blocks = requests[i].blocks;
    for (size_t at = blocks.size(); at-- > 1;) {
      const auto end = ends.find(blocks[at]);
      if (end == ends.end()) continue;
      goes_on[end->second] = requests[i].seconds;
      ends.erase(end);
      break;
    }
    const size_t full = requests[i].input_tokens / trace->block_tokens;
    if (full > 0) ends[blocks[full - 1]] = i;
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    if (Mix(i) % 100 >= percent) continue;
    requests[i].next = !goes_on[i]                                         ? NextUse::kNever
                       : *goes_on[i] - requests[i].seconds <= kSoonSeconds ? NextUse::kSoon
                                                                           : NextUse::kLater;
  }
}

}  // namespace cairn::cli::replay
