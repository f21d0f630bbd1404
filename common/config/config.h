#pragma once
// The settings of a process: one table of typed fields. Their values come from defaults, a YAML
// file, the environment and flags.
//
//   struct Options { std::string listen = "127.0.0.1:7400"; uint64_t capacity = 1 << 30; };
//   Options options;
//   config::Schema schema("cairn-cache", "Keeps KV blocks.");
//   schema.Text("listen", &options.listen, "Address of the data port.");
//   schema.Bytes("host.capacity", &options.capacity, "Size of the arena.", {.min = 16 << 20});
//   Result<config::CommandLine> line = config::Load(schema, {argv + 1, argv + argc});
//
// Each field is registered once, with its name, default (the target's value at that moment), unit,
// range and meaning. The parser, the error texts, --help, --print-config and docs/operate/config.md
// are all made from that. Later sources win: default < file < environment < flags.
//
// Thread-compatible. The targets must outlive the schema. A call that fails may already have
// changed some of them.

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"

namespace cairn::config {

// Parses a number of bytes: "512MiB", "1.5GiB", "64KB", "4096". Units are binary (KiB to TiB),
// decimal (KB to TB), B, or none for bytes.
Result<uint64_t> ParseBytes(std::string_view text);
// Uses the largest binary unit that divides the number: 1073741824 is "1GiB".
std::string FormatBytes(uint64_t bytes);
// A size to ask for: rounded up by less than a thousandth, with a unit, so that a person can type
// it.
std::string FormatBytesUp(uint64_t bytes);
// Parses a duration: "1s", "250ms", "1.5m", "2h", "90d", "100us", "0". A unit is
// required except for 0.
Result<Duration> ParseDuration(std::string_view text);
std::string FormatDuration(Duration duration);

// Returns the candidate with the smallest edit distance to `name`. "": none is similar enough to be
// the name that the user meant.
std::string Nearest(std::string_view name, const std::vector<std::string>& candidates);

struct TextOptions {
  std::vector<std::string> choices = {};  // The legal values. Empty: any text.
  // An environment variable that sets the field. For the identity of a pod and paths of secret
  // files.
  std::string env = {};
  size_t max_length = 4096;
};
struct IntegerOptions {
  uint64_t min = 0;
  uint64_t max = std::numeric_limits<int64_t>::max();
  std::string unit = {};  // "blocks", "threads": for people.
};
struct RealOptions {
  double min = 0;
  double max = std::numeric_limits<double>::max();
  std::string unit = {};
};
struct BytesOptions {
  uint64_t min = 0;
  uint64_t max = 1ull << 50;
};
struct TimeOptions {
  Duration min{0};
  Duration max = std::chrono::hours(24 * 365);
  bool or_zero = false;  // 0 is legal even if it is outside the range.
};

class Schema {
 public:
  // --help begins with `program` and `summary`. `example` is one command line that works.
  Schema(std::string program, std::string summary, std::string example = {});
  ~Schema();
  Schema(const Schema&) = delete;
  Schema& operator=(const Schema&) = delete;

  // Names are dotted lower-case words, unique: "host.capacity". In YAML the dots are levels.
  void Bool(std::string name, bool* target, std::string doc);
  void Integer(std::string name, uint32_t* target, std::string doc,
               const IntegerOptions& options = {});
  void Integer(std::string name, uint64_t* target, std::string doc,
               const IntegerOptions& options = {});
  void Real(std::string name, double* target, std::string doc, const RealOptions& options = {});
  void Bytes(std::string name, uint64_t* target, std::string doc, BytesOptions options = {});
  void Time(std::string name, Duration* target, std::string doc, TimeOptions options = {});
  void Text(std::string name, std::string* target, std::string doc,
            const TextOptions& options = {});
  // A YAML sequence, or text with commas in flags.
  void TextList(std::string name, std::vector<std::string>* target, std::string doc,
                const TextOptions& options = {});

  // A flag without a value that is not a setting, such as --json. `name` has no dashes.
  void Switch(std::string name, bool* target, std::string doc);
  // Adds a check of several fields. The checks run in the order of registration, after all sources
  // were read.
  void Check(std::function<Status()> check);
  // Adds a check that only --check-config runs, after all others: of what a start finds out by
  // itself, such as a file that cannot be used.
  void CheckOnRequest(std::function<Status()> check);

  // Adds a line that --check-config prints if nothing is wrong. Empty: none.
  void TellOnRequest(std::function<std::string()> line);

  // INVALID_ARGUMENT naming field, value, expectation and `source` ("flag", "cairn.yaml line 3").
  Status Set(std::string_view name, std::string_view value, std::string_view source);
  // `source` names the text in errors. Unknown key: INVALID_ARGUMENT with the nearest known one.
  Status ApplyYaml(const std::string& text, const std::string& source);
  Status ApplyYamlFile(const std::string& path);
  // `get` is ::getenv except in tests. It returns nullptr for a variable that is not set.
  Status ApplyEnvironment(const std::function<const char*(const char*)>& get);
  // A line for each variable that is named like a setting, such as CAIRN_HOST_CAPACITY, and that
  // nothing reads. Not for all unknown CAIRN_*: Kubernetes sets some of them.
  std::vector<std::string> UnreadVariables(
      const std::function<const char*(const char*)>& get) const;
  Status RunChecks() const;
  Status RunChecksOnRequest() const;
  // The lines of TellOnRequest, each with its end.
  std::string Tell() const;

  // The values that differ from their defaults, as one YAML line: {host.capacity: 64MiB}. No value
  // is a secret: the settings name files of secrets.
  std::string PrintChanged() const;
  // The current values as a YAML file, with a comment above each.
  std::string PrintYaml() const;
  // A Markdown table of all fields with their defaults (not with the current values).
  std::string PrintMarkdown() const;
  std::string PrintHelp() const;

 private:
  friend class Loader;
  struct Field;
  struct SwitchField;
  Field* Find(std::string_view name) const;
  Status Unknown(std::string_view name, std::string_view source) const;
  // The error of a check, after the file or variable of the setting that it begins with.
  Status WithSource(const Status& status) const;
  void Add(Field field);

  const std::string program_, summary_, example_;
  std::vector<std::unique_ptr<Field>> fields_;
  std::vector<SwitchField> switches_;
  std::vector<std::function<Status()>> checks_, checks_on_request_;
  std::vector<std::function<std::string()>> lines_on_request_;
};

struct CommandLine {
  // If set, the program prints this on stdout and exits with 0 (--help, --version, --print-config,
  // --print-config-docs, --check-config).
  bool exit = false;
  std::string output;
  // Words that are not flags, in order.
  std::vector<std::string> words;
  // Lines for people.
  std::vector<std::string> warnings;
};

// Reads all sources (--config FILE, the environment, --set a.b=c, --a.b c, --a.b=c) and then runs
// the checks. `args` does not contain argv[0].
Result<CommandLine> Load(Schema& schema, const std::vector<std::string>& args);

// The version of the project, such as "0.1.0", and the commit at which it was configured, or
// "unknown" outside of a checkout.
std::string_view Version();
std::string_view Revision();

}  // namespace cairn::config
