#include "common/config/yaml_document.h"

#include <yaml-cpp/eventhandler.h>

#include <optional>
#include <sstream>

namespace cairn::config {
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

Status ReadYaml(const std::string& text, const std::string& source,
                const std::function<Status(const YAML::Node& root)>& read) {
  try {  // yaml-cpp reports by exceptions; they end here.
    // yaml-cpp would read the first one, and nobody the others.
    if (const auto second = SecondDocument(text)) {
      return InvalidArgument("{} line {}: got a second YAML document, expected 1", source,
                             second->line + 1);
    }
    return read(YAML::Load(text));
  } catch (const YAML::Exception& e) {
    return InvalidArgument("{} line {}: not valid YAML: {}", source, e.mark.line + 1, e.msg);
  }
}

}  // namespace cairn::config
