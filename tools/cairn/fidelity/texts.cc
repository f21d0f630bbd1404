#include "tools/cairn/fidelity/texts.h"

#include <fstream>

#include "tools/cairn/output/json.h"

namespace cairn::cli {
namespace {

FidelityDocument DocumentOf(const Json& j) {
  return {.name = j.at("name").get<std::string>(), .text = j.at("text").get<std::string>()};
}

NeedleContext NeedlesOf(const Json& j) {
  NeedleContext context;
  context.name = j.at("name").get<std::string>();
  context.facts = j.at("facts").get<std::vector<std::string>>();
  context.hay = j.at("hay").get<std::vector<std::string>>();
  for (const Json& c : j.at("cases")) {
    context.cases.push_back({.kind = c.at("kind").get<std::string>(),
                             .question = c.at("question").get<std::string>(),
                             .opening = c.at("opening").get<std::string>(),
                             .answer = c.at("answer").get<std::string>()});
  }
  return context;
}

bool IsDocuments(const std::string& suite) {
  return suite == "prose" || suite == "code" || suite == "dialogue";
}

}  // namespace

const std::vector<std::string>& FidelitySuites() {
  static const std::vector<std::string> kSuites = {"prose",    "code",        "dialogue",
                                                   "needles",  "multiturn",   "keys",
                                                   "tracking", "aggregation", "sums"};
  return kSuites;
}

Result<FidelitySuite> LoadFidelitySuite(const std::string& directory, const std::string& split,
                                        const std::string& suite, size_t limit) {
  const bool second_turn = suite == "multiturn";
  const bool needles = !IsDocuments(suite);
  const std::string file_suite = second_turn ? "needles" : suite;
  const std::string path = directory + "/" + split + "-" + file_suite + ".json";
  std::ifstream file(path);
  if (!file) return Errorf(StatusCode::kNotFound, "'{}': cannot be read", path);
  FidelitySuite out;
  out.name = suite;
  out.second_turn = second_turn;
  try {
    const Json root = Json::parse(file);
    for (const Json& item : root.at(needles ? "contexts" : "documents")) {
      if (limit > 0 && out.documents.size() + out.needles.size() >= limit) break;
      if (needles) {
        out.needles.push_back(NeedlesOf(item));
      } else {
        out.documents.push_back(DocumentOf(item));
      }
    }
  } catch (const Json::exception& error) {
    return InvalidArgument("'{}': {}", path, error.what());
  }
  return out;
}

}  // namespace cairn::cli
