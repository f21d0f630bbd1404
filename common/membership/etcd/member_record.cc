#include "common/membership/etcd/member_record.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "common/membership/static_discovery.h"

namespace cairn::membership {
namespace {

using Json = nlohmann::json;

Status ReadString(const Json& json, const char* field, std::string* to) {
  const auto it = json.find(field);
  if (it == json.end()) return OkStatus();
  if (!it->is_string()) {
    return InvalidArgument("{}: got {}, expected a string", field, it->type_name());
  }
  *to = it->get<std::string>();
  return OkStatus();
}

}  // namespace

std::string EncodeMember(const Member& member, bool leaving) {
  Json json{{"address", member.address},
            {"id", member.id},
            {"epoch", member.epoch},
            // JSON's readers take numbers for doubles, which lose such large ones.
            {"incarnation", fmt::format("{:016x}", member.incarnation)},
            {"host", member.host},
            {"zone", member.zone}};
  if (leaving) json["leaving"] = true;
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

bool SaysLeaving(std::string_view text) {
  if (text.size() > kMaxMemberRecordBytes) return false;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return false;
  const auto leaving = json.find("leaving");
  return leaving != json.end() && leaving->is_boolean() && leaving->get<bool>();
}

Result<Member> DecodeMember(std::string_view text) {
  if (text.size() > kMaxMemberRecordBytes) {
    return InvalidArgument("member record: got {} bytes, expected at most {}", text.size(),
                           kMaxMemberRecordBytes);
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument("member record: expected a JSON object");
  Member member;
  std::string incarnation;
  for (const auto& [field, to] :
       {std::pair{"address", &member.address}, std::pair{"id", &member.id},
        std::pair{"host", &member.host}, std::pair{"zone", &member.zone},
        std::pair{"incarnation", &incarnation}}) {
    if (Status status = ReadString(json, field, to); !status.ok()) return status;
  }
  if (member.id.empty()) return InvalidArgument("id: got nothing, expected the id of a node");
  if (Status status = CheckMemberAddress(member.address, "address"); !status.ok()) return status;
  const auto epoch = json.find("epoch");
  if (epoch == json.end() || !epoch->is_number_unsigned()) {
    return InvalidArgument("epoch: expected a whole number");
  }
  member.epoch = epoch->get<uint64_t>();
  const char* const end = incarnation.data() + incarnation.size();
  const auto [rest, error] = std::from_chars(incarnation.data(), end, member.incarnation, 16);
  if (error != std::errc() || rest != end) {
    return InvalidArgument("incarnation: got '{}', expected up to 16 hexadecimal digits",
                           incarnation);
  }
  return member;
}

}  // namespace cairn::membership
