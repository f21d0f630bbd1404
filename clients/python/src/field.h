#pragma once
// The name of an argument, for errors.

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace cairn::python {

// Made into text only when there is an error: a push of many small parts has hundreds of names and
// nobody reads them. Refers to the strings that it was made of. Belongs to the thread of its call.
class Field {
 public:
  Field(const char* name) : name_(name) {}
  Field(const std::string& name) : name_(name) {}
  // name[index], or name[index].member.
  Field(std::string_view name, size_t index, std::string_view member = {})
      : name_(name), index_(index), member_(member) {}

  // An item of the field, which is a sequence.
  Field Item(size_t item) const {
    Field field = *this;
    field.item_ = item;
    return field;
  }

  std::string str() const {
    std::string text(name_);
    if (index_ != kNone) text += fmt::format("[{}]", index_);
    if (!member_.empty()) text.append(".").append(member_);
    if (item_ != kNone) text += fmt::format("[{}]", item_);
    return text;
  }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  std::string_view name_;
  size_t index_ = kNone;
  std::string_view member_;
  size_t item_ = kNone;
};

}  // namespace cairn::python

template <>
struct fmt::formatter<cairn::python::Field> : fmt::formatter<std::string> {
  auto format(const cairn::python::Field& field, fmt::format_context& context) const {
    return fmt::formatter<std::string>::format(field.str(), context);
  }
};
