#include "services/worker/methods/reading/read_policy.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <type_traits>

namespace cairn::worker {
namespace {

using Guess = DecodeReader::Guess;

template <typename T>
struct Named {
  std::string_view name;
  T value;
};

constexpr Named<CopyFormat> kFormats[] = {
    {"turbo2", {kernels::CopyForm::kTurbo, 2}}, {"turbo3", {kernels::CopyForm::kTurbo, 3}},
    {"turbo4", {kernels::CopyForm::kTurbo, 4}}, {"int4", {kernels::CopyForm::kInt4, 4}},
    {"int8", {kernels::CopyForm::kInt8, 8}},
};
constexpr Named<Guess> kQueries[] = {
    {"own", Guess::kNone}, {"attention", Guess::kAfterAttention}, {"input", Guess::kInput}};
constexpr Named<VictimRule> kVictims[] = {
    {"lru", VictimRule::kLru}, {"fifo", VictimRule::kFifo}, {"counter", VictimRule::kCounter}};

constexpr std::string_view kOwnRotation = "context";
constexpr std::string_view kRotationExpected =
    "context, or the first 16 hexadecimal digits of a calibration file's SHA-256";

template <typename Table>
std::string Names(const Table& table) {
  std::string names;
  for (const auto& entry : table) {
    if (!names.empty()) names += ", ";
    names += entry.name;
  }
  return names;
}

template <typename T, size_t n>
std::string_view NameOf(const Named<T> (&table)[n], const T& value) {
  return std::ranges::find(table, value, &Named<T>::value)->name;
}

Status Wrong(std::string_view parameter, std::string_view got, std::string_view expected) {
  return InvalidArgument("read policy parameter '{}': got '{}', expected {}", parameter, got,
                         expected);
}

template <typename T, size_t n>
Status ReadName(const Named<T> (&table)[n], std::string_view parameter, std::string_view text,
                T* value) {
  const auto found = std::ranges::find(table, text, &Named<T>::name);
  if (found == std::end(table)) return Wrong(parameter, text, "one of " + Names(table));
  *value = found->value;
  return OkStatus();
}

// Without an exponent: 0.000001.
template <typename T>
std::string Plain(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    std::string text = fmt::format("{:.6f}", value);
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
    return text;
  } else {
    return fmt::format("{}", value);
  }
}

template <typename T>
Status ReadNumber(std::string_view parameter, std::string_view text, T least, T greatest,
                  T* value) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *value);
  if (error != std::errc() || at != end || !(*value >= least && *value <= greatest)) {
    return Wrong(parameter, text, fmt::format("{} to {}", Plain(least), Plain(greatest)));
  }
  return OkStatus();
}

// "4MiB", "4096".
Status ReadBytes(std::string_view parameter, std::string_view text, uint64_t* value) {
  static constexpr Named<int> kUnits[] = {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
  std::string_view number = text;
  int shift = 0;
  for (const auto& unit : kUnits) {
    if (!text.ends_with(unit.name)) continue;
    number.remove_suffix(unit.name.size());
    shift = unit.value;
  }
  uint64_t n = 0;
  const char* const end = number.data() + number.size();
  const auto [at, error] = std::from_chars(number.data(), end, n);
  if (error != std::errc() || at != end || n > (uint64_t{1} << 40 >> shift)) {
    return Wrong(parameter, text, "bytes such as 4MiB, at most 1024GiB");
  }
  *value = n << shift;
  return OkStatus();
}

// The first 16 digits of a file's SHA-256.
Status ReadRotation(std::string_view text, uint64_t* value) {
  *value = 0;
  if (text == kOwnRotation) return OkStatus();
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *value, 16);
  const bool lower = std::ranges::none_of(text, [](char c) { return c >= 'A' && c <= 'F'; });
  if (text.size() != 16 || error != std::errc() || at != end || !lower || *value == 0) {
    return Wrong("rotation", text, kRotationExpected);
  }
  return OkStatus();
}

Status ReadNear(std::string_view text, bool values, ReadPolicy* policy) {
  const size_t slash = text.find('/');
  if (slash != std::string_view::npos && !values) {
    return Wrong("near", text, "one codec, since only keys are copied");
  }
  CAIRN_ASSIGN_OR_RETURN(policy->near_k, ParseCopyFormat(text.substr(0, slash)));
  policy->near_v = policy->near_k;
  if (slash == std::string_view::npos) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(policy->near_v, ParseCopyFormat(text.substr(slash + 1)));
  return OkStatus();
}

Status ReadParameter(std::string_view name, std::string_view value, ReadPolicy* policy) {
  if (name == "rows") return ReadNumber(name, value, 1e-6, 1.0, &policy->rows);
  if (name == "query") return ReadName(kQueries, name, value, &policy->query);
  if (name == "sink") return ReadNumber<int64_t>(name, value, 0, 1024, &policy->sink);
  if (name == "set") return ReadNumber(name, value, 1.0, 1000.0, &policy->set);
  if (name == "victim") return ReadName(kVictims, name, value, &policy->victim);
  if (name == "step") return ReadBytes(name, value, &policy->step_bytes);
  if (name == "near") return ReadNear(value, policy->has_copy(), policy);
  if (name == "page") return ReadNumber<int64_t>(name, value, 1, 256, &policy->page);
  if (name == "centres") return ReadNumber(name, value, 0.001, 1.0, &policy->centres);
  if (name == "partial") return ReadNumber(name, value, 0.01, 1.0, &policy->partial);
  if (name == "rotation") return ReadRotation(value, &policy->rotation);
  return ReadNumber(name, value, 0.0, 1000.0, &policy->alpha);
}

std::string ValueOf(std::string_view name, const ReadPolicy& p) {
  if (name == "rows") return fmt::format("{}", p.rows);
  if (name == "query") return std::string(NameOf(kQueries, p.query));
  if (name == "sink") return fmt::format("{}", p.sink);
  if (name == "set") return fmt::format("{}", p.set);
  if (name == "victim") return std::string(NameOf(kVictims, p.victim));
  if (name == "step") return fmt::format("{}", p.step_bytes);
  if (name == "near") {
    const bool alike = p.near_v == p.near_k || !p.has_copy();
    return alike ? Name(p.near_k) : fmt::format("{}/{}", Name(p.near_k), Name(p.near_v));
  }
  if (name == "page") return fmt::format("{}", p.page);
  if (name == "centres") return fmt::format("{}", p.centres);
  if (name == "partial") return fmt::format("{}", p.partial);
  if (name == "rotation") {
    return p.rotation == 0 ? std::string(kOwnRotation) : fmt::format("{:016x}", p.rotation);
  }
  return fmt::format("{}", p.alpha);
}

constexpr std::string_view kCommon[] = {"rows", "query", "sink", "set", "victim", "step"};

bool Has(const PolicyCard& card, std::string_view parameter) {
  return std::ranges::find(kCommon, parameter) != std::end(kCommon) ||
         std::ranges::find(card.parameters, parameter) != card.parameters.end();
}

std::string AllOf(const PolicyCard& card) {
  std::string names;
  for (const PolicyParameter& parameter : PolicyParameters()) {
    if (!Has(card, parameter.name)) continue;
    if (!names.empty()) names += ", ";
    names += parameter.name;
  }
  return names;
}

}  // namespace

Result<CopyFormat> ParseCopyFormat(std::string_view text) {
  CopyFormat format;
  CAIRN_RETURN_IF_ERROR(ReadName(kFormats, "near", text, &format));
  return format;
}

std::string Name(const CopyFormat& format) { return std::string(NameOf(kFormats, format)); }

std::span<const PolicyCard> PolicyCards() {
  static const std::vector<PolicyCard> kCards = {
      {PolicyKind::kPrecision,
       "precision",
       "a copy of all rows in few bits stays near, and the chosen rows are read exactly",
       "ours",
       "-",
       {"near"},
       "0.02"},
      {PolicyKind::kExactTopK,
       "exact-topk",
       "the rows with the largest exact shares; all keys stay near",
       "the yardstick",
       "-",
       {},
       "0.05"},
      {PolicyKind::kKeysCopy,
       "keys-copy",
       "the rows with the largest shares by a copy of the keys in few bits",
       "as the keys of precision, without its values",
       "-",
       {"near"},
       "0.1"},
      {PolicyKind::kQuest,
       "quest",
       "pages of rows by a bound from each page's least and greatest keys",
       "Quest (arXiv 2406.10774)",
       "all layers read by pages; the heads of a group share their pages",
       {"page"},
       "0.2"},
      {PolicyKind::kLandmark,
       "landmark",
       "pages of rows by their mean key",
       "landmarks of ShadowKV (arXiv 2410.21465), representatives of InfLLM (arXiv 2402.04617)",
       "no outlier pages, and values are not offloaded apart from keys",
       {"page"},
       "0.2"},
      {PolicyKind::kClusters,
       "clusters",
       "rows by the mean key of their cluster",
       "SqueezedAttention (arXiv 2411.09688)",
       "a budget of rows instead of a threshold, so the last cluster may be read in part; one "
       "level of clusters; the heads of a group share their rows",
       {"centres"},
       "0.2"},
      {PolicyKind::kInfiniGen,
       "infinigen",
       "rows by some columns of rotated keys, from the query guessed one layer ahead",
       "InfiniGen (arXiv 2406.19707)",
       "rotations are of keys and queries after RoPE; without a calibration file, rotation and "
       "columns "
       "come from the context's own keys; with one, the file has the queries' share in the choice "
       "of "
       "columns; the heads of a group share their rows; layer 0 chooses by its own query",
       {"partial", "alpha", "rotation"},
       "0.2"},
  };
  return kCards;
}

std::span<const PolicyParameter> PolicyParameters() {
  static const std::vector<PolicyParameter> kParameters = {
      {"rows", "share of the context's rows that a step reads exactly, per layer and KV head",
       "by policy", "0.000001 to 1"},
      {"query",
       "whose query chooses: the layer's own, or one guessed from the layer before, after "
       "its attention or at its input",
       "own; infinigen: input", Names(kQueries)},
      {"sink", "first rows that always stay near", "1", "0 to 1024"},
      {"set", "most rows of the working set, over the rows of a step", "1", "1 to 1000"},
      {"victim", "which row leaves the working set", "lru; infinigen: counter", Names(kVictims)},
      {"step", "most bytes that a step reads; 0: no limit", "0", "bytes such as 4MiB"},
      {"near", "codec of the copy; precision: also KEYS/VALUES", "turbo3; keys-copy: turbo2",
       Names(kFormats)},
      {"page", "rows that are chosen together", "16; landmark: 8", "1 to 256"},
      {"centres", "centres of clusters over the context's rows, at most 65536", "0.05",
       "0.001 to 1"},
      {"partial", "share of the columns that logits are guessed from", "0.3", "0.01 to 1"},
      {"alpha", "rows whose logit is below the largest by more are not read", "4", "0 to 1000"},
      {"rotation", "file with rotations that were found offline, or the context's own", "context",
       std::string(kRotationExpected)},
  };
  return kParameters;
}

const PolicyCard& ReadPolicy::card() const {
  return *std::ranges::find(PolicyCards(), kind, &PolicyCard::kind);
}

std::string ReadPolicy::ToString() const {
  std::string text = card().name;
  char separator = ':';
  for (const PolicyParameter& parameter : PolicyParameters()) {
    if (!Has(card(), parameter.name)) continue;
    text += fmt::format("{}{}={}", separator, parameter.name, ValueOf(parameter.name, *this));
    separator = ',';
  }
  return text;
}

Result<ReadPolicy> ParseReadPolicy(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const auto card = std::ranges::find(PolicyCards(), name, &PolicyCard::name);
  if (card == PolicyCards().end()) {
    return InvalidArgument("read policy: got '{}', expected one of {}", name, Names(PolicyCards()));
  }
  ReadPolicy policy;
  policy.kind = card->kind;
  CAIRN_RETURN_IF_ERROR(ReadParameter("rows", card->rows, &policy));
  if (policy.kind == PolicyKind::kKeysCopy) policy.near_k = policy.near_v = {.bits = 2};
  if (policy.kind == PolicyKind::kLandmark) policy.page = 8;
  if (policy.kind == PolicyKind::kInfiniGen) {
    policy.query = Guess::kInput;
    policy.victim = VictimRule::kCounter;
  }
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (colon != std::string_view::npos && rest.empty()) {
    return InvalidArgument("read policy: got '{}', expected NAME=VALUE after ':'", text);
  }
  std::vector<std::string_view> given;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view entry = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
    const size_t equals = entry.find('=');
    const std::string_view key = entry.substr(0, equals);
    if (equals == std::string_view::npos || !Has(*card, key)) {
      return InvalidArgument("read policy '{}': got '{}', expected NAME=VALUE with one of {}", name,
                             entry, AllOf(*card));
    }
    if (std::ranges::find(given, key) != given.end()) {
      return InvalidArgument("read policy '{}': parameter '{}' is given twice", name, key);
    }
    given.push_back(key);
    CAIRN_RETURN_IF_ERROR(ReadParameter(key, entry.substr(equals + 1), &policy));
  }
  return policy;
}

Status CheckReadPolicy(const ReadPolicy& policy, const KvLayout& kv) {
  // Less would read nothing, silently: each layer and KV head has an even share of it.
  const uint64_t least_step =
      static_cast<uint64_t>(kv.layers) * static_cast<uint64_t>(kv.kv_heads) * 2 * kv.row_bytes();
  if (policy.step_bytes > 0 && policy.step_bytes < least_step) {
    return InvalidArgument(
        "read policy parameter 'step': got {} bytes, expected 0 or at least {}: a row of each "
        "layer and KV head",
        policy.step_bytes, least_step);
  }
  if (!Has(policy.card(), "near")) return OkStatus();
  for (const CopyFormat& format : {policy.near_k, policy.near_v}) {
    const int64_t dim = kv.head_dim;
    const bool power = dim == 64 || dim == 128 || dim == 256 || dim == 512;
    const bool fits = format.form == kernels::CopyForm::kTurbo  ? power
                      : format.form == kernels::CopyForm::kInt4 ? dim % 32 == 0
                                                                : dim % 16 == 0;
    if (fits) continue;
    return InvalidArgument(
        "read policy parameter 'near': {} cannot store heads of {} dimensions; expected {}",
        Name(format), dim,
        format.form == kernels::CopyForm::kTurbo ? "64, 128, 256 or 512"
                                                 : "a multiple of 32 (int4) or 16 (int8)");
  }
  return OkStatus();
}

}  // namespace cairn::worker
