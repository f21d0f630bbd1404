#include "common/config/schema.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>

namespace cairn::config {
namespace {

Result<uint64_t> ParseInteger(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return InvalidArgument("no integer");
  }
  return value;
}

Result<double> ParseReal(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return InvalidArgument("no number");
  return value;
}

std::string Join(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

bool IsControl(char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }

// A YAML plain scalar where that is unambiguous, else a quoted one.
std::string YamlText(const std::string& text) {
  const bool plain =
      !text.empty() && text.find_first_of("#'\"\\{}[],&*!|>%@`?") == std::string::npos &&
      std::none_of(text.begin(), text.end(), IsControl) && text.find(": ") == std::string::npos &&
      text.front() != ' ' && text.back() != ' ' && text.front() != '-' && text.front() != ':' &&
      text.back() != ':' && text != "~" && text != "null" && !ParseBool(text).ok();
  if (plain) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n') {
      quoted += "\\n";
    } else if (IsControl(c)) {
      // A line break or a 0 would end the value, and a reader folds the others.
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      quoted += c;
    }
  }
  quoted += '"';
  return quoted;
}

std::string YamlList(const std::vector<std::string>& list) {
  std::vector<std::string> items;
  items.reserve(list.size());
  for (const std::string& item : list) items.push_back(YamlText(item));
  return fmt::format("[{}]", Join(items));
}

// "from 1 to 64 threads", without an end that nobody would reach.
std::string IntegerRange(const IntegerOptions& options) {
  const std::string unit = options.unit.empty() ? "" : fmt::format(" {}", options.unit);
  if (options.max >= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return fmt::format("an integer of at least {}{}", options.min, unit);
  }
  return fmt::format("an integer from {} to {}{}", options.min, options.max, unit);
}

std::string RealRange(const RealOptions& options) {
  const std::string unit = options.unit.empty() ? "" : fmt::format(" {}", options.unit);
  if (options.max == std::numeric_limits<double>::max()) {
    return fmt::format("a number of at least {}{}", options.min, unit);
  }
  return fmt::format("a number from {} to {}{}", options.min, options.max, unit);
}

// "a, b" is written as often as "a,b".
std::string_view Trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(' '), text.size());
  return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

Status CheckText(const std::string& text, const TextOptions& options) {
  if (text.size() > options.max_length) return InvalidArgument("too long");
  if (options.choices.empty()) return OkStatus();
  if (std::find(options.choices.begin(), options.choices.end(), text) == options.choices.end()) {
    return InvalidArgument("not one of the choices");
  }
  return OkStatus();
}

std::string TextExpectation(const TextOptions& options, std::string_view noun) {
  if (!options.choices.empty()) return fmt::format("one of {}", Join(options.choices));
  return fmt::format("{} of at most {} characters", noun, options.max_length);
}

template <typename Target>
std::function<Status(std::string_view)> IntegerParser(Target* target,
                                                      const IntegerOptions& options) {
  return [=](std::string_view text) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const uint64_t value, ParseInteger(text));
    if (value < options.min || value > options.max || value > std::numeric_limits<Target>::max()) {
      return InvalidArgument("out of range");
    }
    *target = static_cast<Target>(value);
    return OkStatus();
  };
}

// "0, or a time from 1s to 90d, such as 1s or 5m": two examples that are in the range, if possible.
std::string TimeExpectation(const TimeOptions& options) {
  using std::chrono::milliseconds, std::chrono::seconds, std::chrono::minutes;
  std::vector<Duration> examples;
  for (const Duration example :
       {Duration(milliseconds(250)), Duration(seconds(1)), Duration(minutes(5)),
        Duration(seconds(5)), Duration(milliseconds(10))}) {
    if (examples.size() < 2 && example >= options.min && example <= options.max) {
      examples.push_back(example);
    }
  }
  std::sort(examples.begin(), examples.end());
  std::string text = fmt::format("{}a time from {} to {}", options.or_zero ? "0, or " : "",
                                 FormatDuration(options.min), FormatDuration(options.max));
  for (size_t i = 0; i < examples.size(); ++i) {
    text += (i == 0 ? ", such as " : " or ") + FormatDuration(examples[i]);
  }
  return text;
}

}  // namespace

Result<bool> ParseBool(std::string_view text) {
  if (text == "true" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "no" || text == "off") return false;
  return InvalidArgument("no boolean");
}

Schema::Schema(std::string program, std::string summary, std::string example)
    : program_(std::move(program)), summary_(std::move(summary)), example_(std::move(example)) {}

Schema::~Schema() = default;

void Schema::Add(Field field) {
  CAIRN_CHECK(Find(field.name) == nullptr);
  field.default_yaml = field.print();
  fields_.push_back(std::make_unique<Field>(std::move(field)));
}

Schema::Field* Schema::Find(std::string_view name) const {
  for (const auto& field : fields_) {
    if (field->name == name) return field.get();
  }
  return nullptr;
}

void Schema::Bool(std::string name, bool* target, std::string doc) {
  Add({.name = std::move(name),
       .type = "boolean",
       .expected = "true or false",
       .doc = std::move(doc),
       .parse = [=](std::string_view text) -> Status {
         CAIRN_ASSIGN_OR_RETURN(*target, ParseBool(text));
         return OkStatus();
       },
       .print = [=] { return std::string(*target ? "true" : "false"); },
       .is_bool = true});
}

void Schema::Integer(std::string name, uint32_t* target, std::string doc,
                     const IntegerOptions& wanted) {
  IntegerOptions options = wanted;
  options.max = std::min<uint64_t>(wanted.max, std::numeric_limits<uint32_t>::max());
  Add({.name = std::move(name),
       .type = "integer",
       .expected = IntegerRange(options),
       .doc = std::move(doc),
       .parse = IntegerParser(target, options),
       .print = [=] { return fmt::format("{}", *target); }});
}

void Schema::Integer(std::string name, uint64_t* target, std::string doc,
                     const IntegerOptions& options) {
  Add({.name = std::move(name),
       .type = "integer",
       .expected = IntegerRange(options),
       .doc = std::move(doc),
       .parse = IntegerParser(target, options),
       .print = [=] { return fmt::format("{}", *target); }});
}

void Schema::Real(std::string name, double* target, std::string doc, const RealOptions& options) {
  Add({.name = std::move(name),
       .type = "number",
       .expected = RealRange(options),
       .doc = std::move(doc),
       .parse = [=](std::string_view text) -> Status {
         CAIRN_ASSIGN_OR_RETURN(const double value, ParseReal(text));
         // Written so that NaN is refused too.
         if (!(value >= options.min && value <= options.max)) {
           return InvalidArgument("out of range");
         }
         *target = value;
         return OkStatus();
       },
       .print = [=] { return fmt::format("{}", *target); }});
}

void Schema::Bytes(std::string name, uint64_t* target, std::string doc, BytesOptions options) {
  Add({.name = std::move(name),
       .type = "size",
       .expected = fmt::format("a size from {} to {}, such as 512MiB", FormatBytes(options.min),
                               FormatBytes(options.max)),
       .doc = std::move(doc),
       .parse = [=](std::string_view text) -> Status {
         CAIRN_ASSIGN_OR_RETURN(const uint64_t value, ParseBytes(text));
         if (value < options.min || value > options.max) return InvalidArgument("out of range");
         *target = value;
         return OkStatus();
       },
       .print = [=] { return FormatBytes(*target); }});
}

void Schema::Time(std::string name, Duration* target, std::string doc, TimeOptions options) {
  Add({.name = std::move(name),
       .type = "time",
       .expected = TimeExpectation(options),
       .doc = std::move(doc),
       .parse = [=](std::string_view text) -> Status {
         CAIRN_ASSIGN_OR_RETURN(const Duration value, ParseDuration(text));
         const bool legal = (value >= options.min && value <= options.max) ||
                            (options.or_zero && value.count() == 0);
         if (!legal) return InvalidArgument("out of range");
         *target = value;
         return OkStatus();
       },
       .print = [=] { return FormatDuration(*target); }});
}

void Schema::Text(std::string name, std::string* target, std::string doc,
                  const TextOptions& options) {
  Add({.name = std::move(name),
       .type = "text",
       .expected = TextExpectation(options, "text"),
       .doc = std::move(doc),
       .env = options.env,
       .parse = [=](std::string_view text) -> Status {
         const std::string value(text);
         CAIRN_RETURN_IF_ERROR(CheckText(value, options));
         *target = value;
         return OkStatus();
       },
       .print = [=] { return YamlText(*target); }});
}

void Schema::TextList(std::string name, std::vector<std::string>* target, std::string doc,
                      const TextOptions& options) {
  auto parse_list = [=](const std::vector<std::string>& list) -> Status {
    for (const std::string& item : list) CAIRN_RETURN_IF_ERROR(CheckText(item, options));
    *target = list;
    return OkStatus();
  };
  Add({.name = std::move(name),
       .type = "list",
       .expected = TextExpectation(options, "a list of texts"),
       .doc = std::move(doc),
       .env = options.env,
       .parse = [=](std::string_view text) -> Status {
         std::vector<std::string> list;
         while (!text.empty()) {
           const size_t comma = std::min(text.find(','), text.size());
           list.emplace_back(Trimmed(text.substr(0, comma)));
           text.remove_prefix(std::min(comma + 1, text.size()));
         }
         return parse_list(list);
       },
       .print = [=] { return YamlList(*target); },
       .parse_list = parse_list});
}

void Schema::Switch(std::string name, bool* target, std::string doc) {
  switches_.push_back({std::move(name), target, std::move(doc)});
}

void Schema::Check(std::function<Status()> check) { checks_.push_back(std::move(check)); }

void Schema::CheckOnRequest(std::function<Status()> check) {
  checks_on_request_.push_back(std::move(check));
}

void Schema::TellOnRequest(std::function<std::string()> line) {
  lines_on_request_.push_back(std::move(line));
}

Status Schema::Unknown(std::string_view name, std::string_view source) const {
  std::vector<std::string> names;
  for (const auto& field : fields_) names.push_back(field->name);
  const std::string nearest = Nearest(name, names);
  if (nearest.empty()) {
    return InvalidArgument("{}: unknown key '{}', expected one of those that --print-config lists",
                           source, name);
  }
  return InvalidArgument("{}: unknown key '{}', did you mean '{}'?", source, name, nearest);
}

Status Schema::Set(std::string_view name, std::string_view value, std::string_view source) {
  Field* field = Find(name);
  if (field == nullptr) return Unknown(name, source);
  if (!field->parse(value).ok()) {
    return InvalidArgument("{}: {}: got '{}', expected {}", source, name, value, field->expected);
  }
  field->source = source;
  return OkStatus();
}

Status Schema::ApplyEnvironment(const std::function<const char*(const char*)>& get) {
  for (const auto& field : fields_) {
    if (field->env.empty()) continue;
    const char* value = get(field->env.c_str());
    if (value == nullptr) continue;
    CAIRN_RETURN_IF_ERROR(Set(field->name, value, "environment variable " + field->env));
  }
  return OkStatus();
}

std::vector<std::string> Schema::UnreadVariables(
    const std::function<const char*(const char*)>& get) const {
  std::vector<std::string> lines;
  for (const auto& field : fields_) {
    std::string variable = "CAIRN_" + field->name;
    std::ranges::transform(variable, variable.begin(), [](unsigned char c) {
      return c == '.' ? '_' : static_cast<char>(std::toupper(c));
    });
    if (variable == field->env || get(variable.c_str()) == nullptr) continue;
    lines.push_back(fmt::format("environment variable {}: nothing reads it, expected --{}{}",
                                variable, field->name,
                                field->env.empty() ? "" : " or " + field->env));
  }
  return lines;
}

Status Schema::RunChecks() const {
  for (const auto& check : checks_) CAIRN_RETURN_IF_ERROR(WithSource(check()));
  return OkStatus();
}

Status Schema::RunChecksOnRequest() const {
  for (const auto& check : checks_on_request_) CAIRN_RETURN_IF_ERROR(WithSource(check()));
  return OkStatus();
}

Status Schema::WithSource(const Status& status) const {
  if (status.ok()) return status;
  const std::string text = Message(status);
  const Field* const field = Find(std::string_view(text).substr(0, text.find(':')));
  // Whoever typed a flag sees it.
  if (field == nullptr || field->source.empty() || field->source == "flag") return status;
  return Annotate(status, field->source);
}

std::string Schema::Tell() const {
  std::string lines;
  for (const auto& line : lines_on_request_) {
    if (const std::string text = line(); !text.empty()) lines += text + '\n';
  }
  return lines;
}

}  // namespace cairn::config
