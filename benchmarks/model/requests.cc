#include "benchmarks/model/requests.h"

#include <charconv>
#include <fstream>
#include <string_view>
#include <utility>

namespace cairn::simulated {
namespace {

// The value after `"name":` in a line of JSON without nesting.
Result<std::string_view> Field(std::string_view line, size_t number, std::string_view name) {
  const std::string quoted = fmt::format("\"{}\":", name);
  const size_t at = line.find(quoted);
  if (at == std::string_view::npos) {
    return InvalidArgument("line {}: field '{}': not there, expected it", number, name);
  }
  std::string_view rest = line.substr(at + quoted.size());
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  return rest;
}

Result<int64_t> Number(std::string_view line, size_t number, std::string_view name) {
  CAIRN_ASSIGN_OR_RETURN(const std::string_view text, Field(line, number, name));
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || value < 0) {
    return InvalidArgument("line {}: field '{}': got '{}', expected a whole number from 0 on",
                           number, name, text.substr(0, 20));
  }
  return value;
}

Result<std::vector<uint64_t>> Blocks(std::string_view line, size_t number) {
  CAIRN_ASSIGN_OR_RETURN(std::string_view text, Field(line, number, "hash_ids"));
  const size_t end = text.find(']');
  if (text.empty() || text.front() != '[' || end == std::string_view::npos) {
    return InvalidArgument("line {}: field 'hash_ids': got '{}', expected a list", number,
                           text.substr(0, 20));
  }
  std::vector<uint64_t> blocks;
  const char* at = text.data() + 1;
  const char* const last = text.data() + end;
  while (true) {
    while (at < last && (*at == ' ' || *at == ',')) ++at;
    if (at == last) return blocks;
    const auto parsed = std::from_chars(at, last, blocks.emplace_back());
    if (parsed.ec != std::errc()) {
      return InvalidArgument("line {}: field 'hash_ids': got '{}', expected numbers", number,
                             std::string_view(at, static_cast<size_t>(last - at)).substr(0, 20));
    }
    at = parsed.ptr;
  }
}

}  // namespace

Result<std::vector<Request>> ReadRequests(const std::string& path, size_t count) {
  std::ifstream in(path);
  if (!in) return InvalidArgument("trace: cannot read '{}'", path);
  std::vector<Request> requests;
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) {
    if (count > 0 && requests.size() == count) break;
    Request request;
    CAIRN_ASSIGN_OR_RETURN(const int64_t stamp, Number(line, number, "timestamp"));
    CAIRN_ASSIGN_OR_RETURN(request.input_tokens, Number(line, number, "input_length"));
    CAIRN_ASSIGN_OR_RETURN(request.output_tokens, Number(line, number, "output_length"));
    CAIRN_ASSIGN_OR_RETURN(request.blocks, Blocks(line, number));
    request.arrival = static_cast<double>(stamp) / 1000;
    if (!requests.empty() && request.arrival < requests.back().arrival) {
      return InvalidArgument("line {}: field 'timestamp': got {}, expected at least that before",
                             number, stamp);
    }
    requests.push_back(std::move(request));
  }
  // Requests of one stamp came between this one and the next.
  for (size_t begin = 0; begin < requests.size();) {
    size_t end = begin;
    while (end < requests.size() && requests[end].arrival == requests[begin].arrival) ++end;
    const double span = end < requests.size() ? requests[end].arrival - requests[begin].arrival : 3;
    for (size_t i = begin; i < end; ++i) {
      requests[i].arrival +=
          span * static_cast<double>(i - begin) / static_cast<double>(end - begin);
    }
    begin = end;
  }
  return requests;
}

std::vector<Request> SpedUp(std::vector<Request> requests, double factor) {
  for (Request& request : requests) request.arrival /= factor;
  return requests;
}

}  // namespace cairn::simulated
