#include <cstdlib>
#include <optional>

#include "common/config/schema.h"
#include "common/config/version.h"

namespace cairn::config {

std::string_view Version() { return CAIRN_VERSION; }
std::string_view Revision() { return CAIRN_REVISION; }

// Reads the flags twice: what names the file first, settings after file and environment, because
// flags win.
class Loader {
 public:
  Loader(Schema& schema, const std::vector<std::string>& args) : schema_(schema), args_(args) {}

  Result<CommandLine> Run() {
    CAIRN_RETURN_IF_ERROR(Scan());
    if (help_) return Exit(schema_.PrintHelp());
    if (version_) return Exit(fmt::format("{} {} ({})\n", schema_.program_, Version(), Revision()));
    if (print_docs_) return Exit(schema_.PrintMarkdown());
    if (!file_.empty()) CAIRN_RETURN_IF_ERROR(schema_.ApplyYamlFile(file_));
    const auto get = [](const char* name) { return std::getenv(name); };
    CAIRN_RETURN_IF_ERROR(schema_.ApplyEnvironment(get));
    line_.warnings = schema_.UnreadVariables(get);
    for (const auto& [key, value] : settings_) {
      CAIRN_RETURN_IF_ERROR(schema_.Set(key, value, "flag"));
    }
    CAIRN_RETURN_IF_ERROR(schema_.RunChecks());
    if (print_) return Exit(schema_.PrintYaml());
    if (check_) {
      CAIRN_RETURN_IF_ERROR(schema_.RunChecksOnRequest());
      return Exit("the configuration is valid\n" + schema_.Tell());
    }
    return line_;
  }

 private:
  Result<CommandLine> Exit(std::string output) {
    line_.exit = true;
    line_.output = std::move(output);
    return line_;
  }

  // The value of the flag at i: behind "=", or the next argument.
  Result<std::string> Value(size_t* i, const std::string& flag,
                            const std::optional<std::string>& inlined) {
    if (inlined) return *inlined;
    if (*i + 1 >= args_.size()) {
      return InvalidArgument("flag --{}: expected a value after it", flag);
    }
    return args_[++*i];
  }

  Status Scan() {
    for (size_t i = 0; i < args_.size(); ++i) {
      if (args_[i] == "-h") {
        help_ = true;
        continue;
      }
      if (args_[i].rfind("--", 0) != 0) {
        line_.words.push_back(args_[i]);
        continue;
      }
      std::string name = args_[i].substr(2);
      std::optional<std::string> inlined;
      if (const size_t equals = name.find('='); equals != std::string::npos) {
        inlined = name.substr(equals + 1);
        name.resize(equals);
      }
      CAIRN_ASSIGN_OR_RETURN(const bool is_action, ScanAction(name, inlined));
      if (is_action) continue;
      if (name == "config") {
        CAIRN_ASSIGN_OR_RETURN(file_, Value(&i, name, inlined));
      } else if (name == "set") {
        CAIRN_ASSIGN_OR_RETURN(const std::string pair, Value(&i, name, inlined));
        const size_t equals = pair.find('=');
        if (equals == std::string::npos) {
          return InvalidArgument("flag --set: got '{}', expected KEY=VALUE", pair);
        }
        AddSetting(pair.substr(0, equals), pair.substr(equals + 1));
      } else {
        const Schema::Field* field = schema_.Find(name);
        if (field == nullptr) return UnknownFlag(name);
        // A boolean may stand alone: --tls.enabled.
        const bool alone =
            field->is_bool && !inlined && (i + 1 >= args_.size() || !ParseBool(args_[i + 1]).ok());
        if (alone) {
          settings_.emplace_back(name, "true");
        } else {
          CAIRN_ASSIGN_OR_RETURN(std::string value, Value(&i, name, inlined));
          AddSetting(name, std::move(value));
        }
      }
    }
    return OkStatus();
  }

  // A list that comes several times has the items of all of them. For any other setting, the last
  // value counts.
  void AddSetting(const std::string& name, std::string value) {
    const Schema::Field* const field = schema_.Find(name);
    if (field != nullptr && field->parse_list) {
      for (auto& [key, items] : settings_) {
        if (key != name) continue;
        if (!items.empty() && !value.empty()) items += ",";
        items += value;
        return;
      }
    }
    settings_.emplace_back(name, std::move(value));
  }

  Result<bool> ScanAction(const std::string& name, const std::optional<std::string>& inlined) {
    bool* target = name == "help"                ? &help_
                   : name == "version"           ? &version_
                   : name == "print-config"      ? &print_
                   : name == "check-config"      ? &check_
                   : name == "print-config-docs" ? &print_docs_
                                                 : nullptr;
    for (const auto& field : schema_.switches_) {
      if (field.name == name) target = field.target;
    }
    if (target == nullptr) return false;
    if (inlined) return InvalidArgument("flag --{}: got '{}', expected no value", name, *inlined);
    *target = true;
    return true;
  }

  Status UnknownFlag(const std::string& name) const {
    std::vector<std::string> names = {
        "help", "version", "print-config", "check-config", "print-config-docs", "config", "set"};
    for (const auto& field : schema_.fields_) names.push_back(field->name);
    for (const auto& field : schema_.switches_) names.push_back(field.name);
    const std::string nearest = Nearest(name, names);
    if (nearest.empty()) return InvalidArgument("unknown flag '--{}', see --help", name);
    return InvalidArgument("unknown flag '--{}', did you mean '--{}'?", name, nearest);
  }

  Schema& schema_;
  const std::vector<std::string>& args_;
  bool help_ = false, version_ = false, print_ = false, check_ = false, print_docs_ = false;
  std::string file_;
  std::vector<std::pair<std::string, std::string>> settings_;
  CommandLine line_;
};

Result<CommandLine> Load(Schema& schema, const std::vector<std::string>& args) {
  return Loader(schema, args).Run();
}

}  // namespace cairn::config
