#pragma once
// A survey, and what one node sees, for people and for programs.

#include <string>

#include "tools/cairn/cluster/survey.h"
#include "tools/cairn/output/json.h"
#include "tools/cairn/output/terminal.h"

namespace cairn::cli {

std::string SurveyText(const Survey& survey, const Terminal& terminal);
Json SurveyJson(const Survey& survey);

std::string MembersText(const client::ClusterMembers& view, const Terminal& terminal);
Json MembersJson(const client::ClusterMembers& view);

std::string LocationsText(const client::ClusterLocations& found, const Terminal& terminal);
Json LocationsJson(const client::ClusterLocations& found);

}  // namespace cairn::cli
