#pragma once
// One YAML document, without yaml-cpp's exceptions.

#include <yaml-cpp/yaml.h>

#include <functional>
#include <string>

#include "cairn/common/status.h"

namespace cairn::config {

// Runs `read` on the document and returns its status. INVALID_ARGUMENT, with `source` and the line:
// it is not YAML, or there is a second document.
Status ReadYaml(const std::string& text, const std::string& source,
                const std::function<Status(const YAML::Node& root)>& read);

}  // namespace cairn::config
