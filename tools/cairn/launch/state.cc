#include "tools/cairn/launch/state.h"

#include <algorithm>
#include <limits>
#include <set>

#include "tools/cairn/output/json.h"

namespace cairn::cli {
namespace {

constexpr int kVersion = 1;
constexpr size_t kMaxText = 1 << 20;
constexpr size_t kMaxProcesses = 1024;
constexpr size_t kMaxValue = 4096;
constexpr Role kRoles[] = {Role::kNode, Role::kWorker, Role::kRouter};

// Values may be anything: only their beginning goes into a message, without control characters.
std::string Shown(const Json& value) {
  constexpr size_t kShown = 60;
  const std::string text = Dump(value);
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

Status Wrong(const std::string& field, const Json& value, std::string_view expected) {
  return InvalidArgument("{}: got {}, expected {}", field, Shown(value), expected);
}

Result<const Json*> FieldOf(const Json& object, const std::string& path, const char* name) {
  const auto it = object.find(name);
  if (it == object.end()) return InvalidArgument("{}{}: is missing", path, name);
  return &*it;
}

Result<std::string> Text(const Json& object, const std::string& path, const char* name) {
  CAIRN_ASSIGN_OR_RETURN(const Json* const value, FieldOf(object, path, name));
  if (value->is_string()) {
    std::string text = value->get<std::string>();
    const bool printable = std::none_of(text.begin(), text.end(),
                                        [](unsigned char c) { return c < 0x20 || c == 0x7f; });
    if (text.size() <= kMaxValue && printable) return text;
  }
  return Wrong(path + name, *value, "a text of at most 4096 bytes without control characters");
}

Result<uint64_t> Number(const Json& object, const std::string& path, const char* name,
                        uint64_t most) {
  CAIRN_ASSIGN_OR_RETURN(const Json* const value, FieldOf(object, path, name));
  if (value->is_number_unsigned() && value->get<uint64_t>() <= most) return value->get<uint64_t>();
  return Wrong(path + name, *value, fmt::format("an integer from 0 to {}", most));
}

// HOST:PORT, or nothing.
Result<std::string> Address(const Json& object, const std::string& path, const char* name) {
  CAIRN_ASSIGN_OR_RETURN(std::string text, Text(object, path, name));
  const size_t colon = text.rfind(':');
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const bool port = colon != text.npos && colon > 0 && text.size() - colon > 1 &&
                    text.size() - colon <= 6 &&
                    std::all_of(text.begin() + 1 + static_cast<long>(colon), text.end(), digit);
  if (!text.empty() && !port) return Wrong(path + name, text, "HOST:PORT, or an empty text");
  return text;
}

// Such as "node-12", of "node".
bool IsNumbered(std::string_view kind, std::string_view name) {
  if (!name.starts_with(kind) || name.size() < kind.size() + 2 || name[kind.size()] != '-') {
    return false;
  }
  const std::string_view number = name.substr(kind.size() + 1);
  return number.size() <= 4 && number[0] != '0' &&
         number.find_first_not_of("0123456789") == number.npos;
}

// The name is part of a path: nothing but the names that `up` gives.
bool IsNameOf(Role role, std::string_view name) {
  if (role == Role::kRouter) return name == Name(role);
  return IsNumbered(Name(role), name) || (role == Role::kWorker && IsNumbered("prefill", name));
}

Result<LaunchedProcess> ParseProcess(const Json& object, const std::string& path) {
  if (!object.is_object()) return Wrong(path, object, "an object");
  LaunchedProcess process;
  CAIRN_ASSIGN_OR_RETURN(const std::string role, Text(object, path + ".", "role"));
  const auto known =
      std::find_if(std::begin(kRoles), std::end(kRoles), [&](Role r) { return Name(r) == role; });
  if (known == std::end(kRoles)) {
    return Wrong(path + ".role", role, "one of node, worker, router");
  }
  process.role = *known;
  CAIRN_ASSIGN_OR_RETURN(process.name, Text(object, path + ".", "name"));
  if (!IsNameOf(process.role, process.name)) {
    return Wrong(path + ".name", process.name, "the role and a number, such as node-1");
  }
  CAIRN_ASSIGN_OR_RETURN(
      const uint64_t pid,
      Number(object, path + ".", "pid", static_cast<uint64_t>(std::numeric_limits<pid_t>::max())));
  if (pid <= 1) return Wrong(path + ".pid", pid, "more than 1");
  process.identity.pid = static_cast<pid_t>(pid);
  CAIRN_ASSIGN_OR_RETURN(
      process.identity.start_ticks,
      Number(object, path + ".", "start_ticks", std::numeric_limits<uint64_t>::max()));
  CAIRN_ASSIGN_OR_RETURN(process.grpc, Address(object, path + ".", "grpc"));
  CAIRN_ASSIGN_OR_RETURN(process.admin, Address(object, path + ".", "admin"));
  CAIRN_ASSIGN_OR_RETURN(process.http, Address(object, path + ".", "http"));
  return process;
}

}  // namespace

bool IsLaunchName(std::string_view name) {
  return std::any_of(std::begin(kRoles), std::end(kRoles),
                     [&](Role role) { return IsNameOf(role, name); });
}

std::string_view Name(Role role) {
  switch (role) {
    case Role::kNode:
      return "node";
    case Role::kWorker:
      return "worker";
    case Role::kRouter:
      return "router";
  }
  return "";
}

std::string LaunchStateText(const LaunchState& state) {
  Json processes = Json::array();
  for (const LaunchedProcess& process : state.processes) {
    processes.push_back({{"role", Name(process.role)},
                         {"name", process.name},
                         {"pid", process.identity.pid},
                         {"start_ticks", process.identity.start_ticks},
                         {"grpc", process.grpc},
                         {"admin", process.admin},
                         {"http", process.http}});
  }
  return DumpPretty({{"version", kVersion},
                     {"boot_id", state.boot_id},
                     {"model", state.model},
                     {"made_directory", state.made_directory},
                     {"processes", std::move(processes)}});
}

Result<LaunchState> ParseLaunchState(std::string_view text) {
  if (text.size() > kMaxText) {
    return InvalidArgument("got {} bytes, expected at most {}", text.size(), kMaxText);
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument("expected one JSON object");
  CAIRN_ASSIGN_OR_RETURN(const uint64_t version, Number(json, "", "version", 1u << 30));
  if (version != kVersion) {
    return Wrong("version", version, fmt::format("{}, which this program writes", kVersion));
  }
  LaunchState state;
  CAIRN_ASSIGN_OR_RETURN(state.boot_id, Text(json, "", "boot_id"));
  CAIRN_ASSIGN_OR_RETURN(state.model, Text(json, "", "model"));
  CAIRN_ASSIGN_OR_RETURN(const Json* const made, FieldOf(json, "", "made_directory"));
  if (!made->is_boolean()) return Wrong("made_directory", *made, "true or false");
  state.made_directory = made->get<bool>();
  CAIRN_ASSIGN_OR_RETURN(const Json* const processes, FieldOf(json, "", "processes"));
  if (!processes->is_array() || processes->size() > kMaxProcesses) {
    return Wrong("processes", *processes, fmt::format("a list of at most {}", kMaxProcesses));
  }
  std::set<std::string> names;
  for (size_t i = 0; i < processes->size(); ++i) {
    const std::string path = fmt::format("processes[{}]", i);
    CAIRN_ASSIGN_OR_RETURN(LaunchedProcess process, ParseProcess((*processes)[i], path));
    if (!names.insert(process.name).second) {
      return Wrong(path + ".name", process.name, "a name that no other process has");
    }
    state.processes.push_back(std::move(process));
  }
  return state;
}

}  // namespace cairn::cli
