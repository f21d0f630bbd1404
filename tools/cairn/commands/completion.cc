#include "tools/cairn/commands/completion.h"

#include <fmt/format.h>

namespace cairn::cli {
namespace {

std::string Join(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

std::string Names(const std::vector<CommandSpec>& commands) {
  std::vector<std::string> names;
  names.reserve(commands.size());
  for (const CommandSpec& command : commands) names.push_back(command.name);
  return Join(names);
}

// For single quotes in all three shells: help texts are ours, so dropping what would need escapes
// is simpler than three kinds of it.
std::string Plain(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') break;
    if (c != '\'' && c != '[' && c != ']' && c != ':' && c != '\\') out.push_back(c);
  }
  return out;
}

std::string Bash(std::string_view program, const std::vector<CommandSpec>& commands) {
  std::string values;
  std::string options;
  for (const CommandSpec& command : commands) {
    std::vector<std::string> words = command.arguments;
    for (const auto& option : command.options) {
      words.push_back(option.name);
      if (!option.takes_value) continue;
      values += fmt::format("    {}:{}) {} ;;\n", command.name, option.name,
                            option.values.empty()
                                ? std::string("COMPREPLY=($(compgen -f -- \"$cur\")); return")
                                : fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$cur\")); return",
                                              Join(option.values)));
    }
    options += fmt::format("    {}) words='{}' ;;\n", command.name, Join(words));
  }
  return fmt::format(R"(_{0}() {{
  local cur prev command words
  cur=${{COMP_WORDS[COMP_CWORD]}}
  prev=${{COMP_WORDS[COMP_CWORD-1]}}
  command=${{COMP_WORDS[1]}}
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{1} --help --version' -- "$cur"))
    return
  fi
  case "$command:$prev" in
{2}  esac
  case "$command" in
{3}    *) words='' ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -F _{0} {0}
)",
                     program, Names(commands), values, options);
}

std::string Zsh(std::string_view program, const std::vector<CommandSpec>& commands) {
  std::string list;
  std::string cases;
  for (const CommandSpec& command : commands) {
    list += fmt::format("    '{}:{}'\n", command.name, Plain(command.help));
    std::string arguments;
    for (const auto& option : command.options) {
      arguments += fmt::format(" \\\n        '{}[{}]", option.name, Plain(option.help));
      if (option.takes_value) {
        arguments +=
            option.values.empty() ? ":value:_files" : ":value:(" + Join(option.values) + ")";
      }
      arguments += "'";
    }
    if (!command.arguments.empty()) {
      arguments += fmt::format(" \\\n        '1:value:({})'", Join(command.arguments));
    }
    cases += fmt::format("    {})\n      _arguments{} ;;\n", command.name, arguments);
  }
  return fmt::format(R"(#compdef {0}
_{0}() {{
  local -a commands
  commands=(
{1}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{2}  esac
}}
compdef _{0} {0}
)",
                     program, list, cases);
}

std::string Fish(std::string_view program, const std::vector<CommandSpec>& commands) {
  std::string out = fmt::format("complete -c {} -f\n", program);
  for (const CommandSpec& command : commands) {
    out += fmt::format("complete -c {0} -n __fish_use_subcommand -a {1} -d '{2}'\n", program,
                       command.name, Plain(command.help));
    for (const auto& option : command.options) {
      if (!option.name.starts_with("--")) continue;
      out += fmt::format("complete -c {0} -n '__fish_seen_subcommand_from {1}' -l {2} -d '{3}'",
                         program, command.name, option.name.substr(2), Plain(option.help));
      if (option.takes_value) {
        out += option.values.empty() ? std::string(" -r -F")
                                     : fmt::format(" -x -a '{}'", Join(option.values));
      }
      out += "\n";
    }
    if (!command.arguments.empty()) {
      out += fmt::format("complete -c {0} -n '__fish_seen_subcommand_from {1}' -a '{2}'\n", program,
                         command.name, Join(command.arguments));
    }
  }
  return out;
}

}  // namespace

Result<std::string> CompletionScript(std::string_view shell, std::string_view program,
                                     const std::vector<CommandSpec>& commands) {
  if (shell == "bash") return Bash(program, commands);
  if (shell == "zsh") return Zsh(program, commands);
  if (shell == "fish") return Fish(program, commands);
  return InvalidArgument("shell: got '{}', expected bash, zsh or fish", shell);
}

}  // namespace cairn::cli
