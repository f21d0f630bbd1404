#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <fstream>
#include <optional>
#include <sstream>

#include "common/config/schema.h"

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

namespace {

// Where a document begins to say something.
class FirstContent final : public YAML::EventHandler {
 public:
  std::optional<YAML::Mark> mark;

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark& at, YAML::anchor_t) override { Note(at); }
  void OnScalar(const YAML::Mark& at, const std::string&, YAML::anchor_t,
                const std::string&) override {
    Note(at);
  }
  void OnSequenceStart(const YAML::Mark& at, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    Note(at);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& at, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    Note(at);
  }
  void OnMapEnd() override {}

 private:
  void Note(const YAML::Mark& at) {
    if (!mark) mark = at;
  }
};

// The place where the second document begins. Not YAML::LoadAll, which finds documents without end
// behind some wrong characters, and takes all memory.
std::optional<YAML::Mark> SecondDocument(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  FirstContent first, second;
  if (!parser.HandleNextDocument(first)) return std::nullopt;
  (void)parser.HandleNextDocument(second);
  return second.mark;
}

}  // namespace

Status Schema::ApplyYaml(const std::string& text, const std::string& source) {
  std::vector<Leaf> leaves;
  try {  // yaml-cpp reports by exceptions; they end here.
    // yaml-cpp would read the first one, and nobody the others.
    if (const auto second = SecondDocument(text)) {
      return InvalidArgument("{} line {}: got a second YAML document, expected 1", source,
                             second->line + 1);
    }
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return OkStatus();
    if (!root.IsMap()) return InvalidArgument("{}: expected a YAML mapping of settings", source);
    CAIRN_RETURN_IF_ERROR(Flatten(root, "", source, 0, &leaves));
  } catch (const YAML::Exception& e) {
    return InvalidArgument("{} line {}: not valid YAML: {}", source, e.mark.line + 1, e.msg);
  }
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
