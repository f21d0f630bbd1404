#include <algorithm>

#include "common/config/schema.h"

namespace cairn::config {
namespace {

std::vector<std::string> Levels(const std::string& name) {
  std::vector<std::string> levels;
  size_t begin = 0;
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', begin)) {
    levels.push_back(name.substr(begin, dot - begin));
    begin = dot + 1;
  }
  levels.push_back(name.substr(begin));
  return levels;
}

void AppendWrapped(std::string* out, const std::string& indent, const std::string& text,
                   size_t width) {
  std::string line;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && indent.size() + line.size() + 1 + word.size() > width) {
      *out += indent + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  if (!line.empty()) *out += indent + line + "\n";
}

// "|" would end the cell.
std::string Cell(const std::string& text) {
  std::string cell;
  for (const char c : text) {
    if (c == '|') cell += '\\';
    cell += c;
  }
  return cell;
}

}  // namespace

std::string Schema::PrintYaml() const {
  std::string out = fmt::format("# {}: the settings in force.\n", program_);
  std::vector<std::string> open;
  for (const auto& field : fields_) {
    const std::vector<std::string> levels = Levels(field->name);
    size_t common = 0;
    while (common < open.size() && common + 1 < levels.size() && open[common] == levels[common]) {
      ++common;
    }
    for (size_t i = common; i + 1 < levels.size(); ++i) {
      out += std::string(2 * i, ' ') + levels[i] + ":\n";
    }
    open.assign(levels.begin(), levels.end() - 1);
    const std::string indent(2 * open.size(), ' ');
    AppendWrapped(&out, indent + "# ", fmt::format("{} Expected: {}.", field->doc, field->expected),
                  100);
    out += indent + levels.back() + ": " + field->print() + "\n";
  }
  return out;
}

std::string Schema::PrintChanged() const {
  std::vector<std::string> changed;
  for (const auto& field : fields_) {
    const std::string value = field->print();
    if (value != field->default_yaml) changed.push_back(fmt::format("{}: {}", field->name, value));
  }
  return fmt::format("{{{}}}", fmt::join(changed, ", "));
}

std::string Schema::PrintMarkdown() const {
  std::string out = "| key | default | expected | meaning |\n|---|---|---|---|\n";
  for (const auto& field : fields_) {
    const std::string env =
        field->env.empty() ? "" : fmt::format(" Environment: `{}`.", field->env);
    out += fmt::format("| `{}` | `{}` | {} | {}{} |\n", field->name, field->default_yaml,
                       Cell(field->expected), Cell(field->doc), env);
  }
  return out;
}

std::string Schema::PrintHelp() const {
  std::string out =
      fmt::format("{}\n\nUsage: {} [--config FILE] [--KEY VALUE ...]\n", summary_, program_);
  if (!example_.empty()) out += fmt::format("Example: {}\n", example_);
  out +=
      "\nFlags\n"
      "  --config FILE           Settings as YAML.\n"
      "  --set KEY=VALUE         One setting; the same as --KEY VALUE.\n"
      "  --print-config          Print the settings in force as YAML and exit.\n"
      "  --check-config          Check the settings and exit.\n"
      "  --print-config-docs     Print the table of all settings as Markdown and exit.\n"
      "  --version, --help, -h\n";
  for (const SwitchField& field : switches_) {
    out += fmt::format("  --{:<20}  {}\n", field.name, field.doc);
  }
  out += "\nSettings (default < file < environment < flags)\n";
  for (const auto& field : fields_) {
    out += fmt::format("  --{} ({})\n", field->name, field->default_yaml);
    const std::string env = field->env.empty() ? "" : fmt::format(" Environment: {}.", field->env);
    AppendWrapped(&out, "      ", field->doc + env, 100);
  }
  return out;
}

}  // namespace cairn::config
