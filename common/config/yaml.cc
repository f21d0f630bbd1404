#include <fstream>
#include <sstream>

#include "common/config/schema.h"
#include "common/config/yaml_document.h"

namespace cairn::config {
namespace {

std::string At(const std::string& source, const YAML::Node& node) {
  return fmt::format("{} line {}", source, node.Mark().line + 1);
}

struct Leaf {
  std::string name;
  YAML::Node value;
  std::string source;
};

// Levels become dots: {host: {capacity: x}} is "host.capacity". A document is at most a few levels
// deep; the bound keeps a hostile one from using up the stack.
Status Flatten(const YAML::Node& map, const std::string& prefix, const std::string& source,
               int depth, std::vector<Leaf>* out) {
  if (depth > 8) return InvalidArgument("{}: more than 8 levels", At(source, map));
  for (const auto& entry : map) {
    if (!entry.first.IsScalar()) {
      return InvalidArgument("{}: a key that is not text", At(source, entry.first));
    }
    const std::string name =
        prefix.empty() ? entry.first.Scalar() : prefix + "." + entry.first.Scalar();
    if (entry.second.IsMap()) {
      CAIRN_RETURN_IF_ERROR(Flatten(entry.second, name, source, depth + 1, out));
    } else {
      out->push_back({name, entry.second, At(source, entry.first)});
    }
  }
  return OkStatus();
}

}  // namespace

Status Schema::ApplyYaml(const std::string& text, const std::string& source) {
  std::vector<Leaf> leaves;
  CAIRN_RETURN_IF_ERROR(ReadYaml(text, source, [&](const YAML::Node& root) -> Status {
    if (root.IsNull()) return OkStatus();
    if (!root.IsMap()) return InvalidArgument("{}: expected a YAML mapping of settings", source);
    return Flatten(root, "", source, 0, &leaves);
  }));
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Leaf& leaf = leaves[i];
    Field* field = Find(leaf.name);
    if (field == nullptr) return Unknown(leaf.name, leaf.source);
    for (size_t j = 0; j < i; ++j) {
      if (leaves[j].name == leaf.name) {
        return InvalidArgument("{}: {}: given twice, also at {}", leaf.source, leaf.name,
                               leaves[j].source);
      }
    }
    if (leaf.value.IsSequence()) {
      std::vector<std::string> list;
      bool scalars = true;
      for (const auto& item : leaf.value) {
        scalars = scalars && item.IsScalar();
        if (item.IsScalar()) list.push_back(item.Scalar());
      }
      if (!field->parse_list || !scalars || !field->parse_list(list).ok()) {
        return InvalidArgument("{}: {}: got a list, expected {}", leaf.source, leaf.name,
                               field->expected);
      }
      field->source = leaf.source;
      continue;
    }
    // A template that lost its value must not turn something off without a word.
    if (leaf.value.IsNull()) {
      return InvalidArgument(
          "{}: {}: got no value, expected {}; for the default, leave the key out", leaf.source,
          leaf.name, field->expected);
    }
    CAIRN_RETURN_IF_ERROR(Set(leaf.name, leaf.value.Scalar(), leaf.source));
  }
  return OkStatus();
}

Status Schema::ApplyYamlFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return InvalidArgument("--config: cannot read '{}', expected a YAML file", path);
  std::ostringstream text;
  text << file.rdbuf();
  return ApplyYaml(text.str(), path);
}

}  // namespace cairn::config
