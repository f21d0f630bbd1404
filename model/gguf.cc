#include "model/gguf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "model/gguf_values.h"

namespace cairn::model {
namespace {

using gguf_internal::Load;
using gguf_internal::ScalarBytes;

std::string_view TypeName(GgufValueType type) {
  constexpr std::string_view kNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                         "int32",  "float32", "bool",   "string", "array",
                                         "uint64", "int64",   "float64"};
  const auto i = static_cast<size_t>(type);
  return i < std::size(kNames) ? kNames[i] : "unknown";
}

// The integer at p; nothing for a uint64 beyond int64 and for other types.
std::optional<int64_t> LoadInt(GgufValueType type, const std::byte* p) {
  switch (type) {
    case GgufValueType::kUint8:
      return Load<uint8_t>(p);
    case GgufValueType::kInt8:
      return Load<int8_t>(p);
    case GgufValueType::kUint16:
      return Load<uint16_t>(p);
    case GgufValueType::kInt16:
      return Load<int16_t>(p);
    case GgufValueType::kUint32:
      return Load<uint32_t>(p);
    case GgufValueType::kInt32:
      return Load<int32_t>(p);
    case GgufValueType::kInt64:
      return Load<int64_t>(p);
    case GgufValueType::kUint64: {
      const uint64_t v = Load<uint64_t>(p);
      if (v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(v);
    }
    case GgufValueType::kFloat32:
    case GgufValueType::kFloat64:
    case GgufValueType::kBool:
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

GgufFile::~GgufFile() {
  if (mapping_ != nullptr) munmap(mapping_, bytes_.size());
}

Result<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  return Map(path, Content::kAll);
}

Result<std::unique_ptr<GgufFile>> GgufFile::OpenMetadata(const std::string& path) {
  return Map(path, Content::kMetadata);
}

Result<std::unique_ptr<GgufFile>> GgufFile::Parse(std::span<const std::byte> bytes,
                                                  std::string name) {
  return Read(bytes, std::move(name), Content::kAll);
}

Result<std::unique_ptr<GgufFile>> GgufFile::ParseMetadata(std::span<const std::byte> bytes,
                                                          std::string name) {
  return Read(bytes, std::move(name), Content::kMetadata);
}

Result<std::unique_ptr<GgufFile>> GgufFile::Map(const std::string& path, Content content) {
  const auto failed = [&](const char* doing) {
    const int code = errno;
    return Status(absl::ErrnoToStatusCode(code),
                  fmt::format("cannot {} model file '{}': {}", doing, path,
                              std::generic_category().message(code)));
  };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return failed("open");
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    const Status status = failed("inspect");
    close(fd);
    return status;
  }
  if (!S_ISREG(info.st_mode) || info.st_size == 0) {
    close(fd);
    return InvalidArgument("'{}' is not a GGUF file: it is {}", path,
                           S_ISREG(info.st_mode) ? "empty" : "not a regular file");
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const Status mapped = mapping == MAP_FAILED ? failed("map") : OkStatus();
  close(fd);
  CAIRN_RETURN_IF_ERROR(mapped);
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->mapping_ = mapping;
  file->bytes_ = {static_cast<const std::byte*>(mapping), size};
  file->name_ = path;
  CAIRN_RETURN_IF_ERROR(file->ParseBytes(content));
  return file;
}

Result<std::unique_ptr<GgufFile>> GgufFile::Read(std::span<const std::byte> bytes, std::string name,
                                                 Content content) {
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->bytes_ = bytes;
  file->name_ = std::move(name);
  CAIRN_RETURN_IF_ERROR(file->ParseBytes(content));
  return file;
}

std::vector<std::string_view> GgufFile::Keys() const {
  std::vector<std::string_view> keys;
  keys.reserve(values_.size());
  for (const auto& [key, value] : values_) keys.push_back(key);
  return keys;
}

Result<const GgufFile::Value*> GgufFile::Find(std::string_view key) const {
  const auto it = values_.find(key);
  if (it == values_.end()) {
    return Errorf(StatusCode::kNotFound, "GGUF file '{}': metadata '{}' is missing", name_, key);
  }
  return &it->second;
}

Status GgufFile::WrongType(std::string_view key, const Value& value,
                           std::string_view expected) const {
  std::string found(TypeName(value.type));
  if (value.type == GgufValueType::kArray) {
    found += fmt::format(" of {}", TypeName(value.element_type));
  }
  return InvalidArgument("GGUF file '{}': metadata '{}' has type {}, expected {}", name_, key,
                         found, expected);
}

Result<int64_t> GgufFile::GetInt(std::string_view key) const {
  CAIRN_ASSIGN_OR_RETURN(const Value* value, Find(key));
  const std::optional<int64_t> number = LoadInt(value->type, value->data.data());
  if (!number.has_value()) return WrongType(key, *value, "an integer below 2^63");
  return *number;
}

Result<double> GgufFile::GetFloat(std::string_view key) const {
  CAIRN_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type == GgufValueType::kFloat32) return Load<float>(value->data.data());
  if (value->type == GgufValueType::kFloat64) return Load<double>(value->data.data());
  return WrongType(key, *value, "float32 or float64");
}

Result<bool> GgufFile::GetBool(std::string_view key) const {
  CAIRN_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type != GgufValueType::kBool) return WrongType(key, *value, "bool");
  return Load<uint8_t>(value->data.data()) != 0;
}

Result<std::string_view> GgufFile::GetString(std::string_view key) const {
  CAIRN_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type != GgufValueType::kString) return WrongType(key, *value, "string");
  const auto text = value->data.subspan(8);
  return std::string_view(reinterpret_cast<const char*>(text.data()), text.size());
}

Result<std::vector<std::string_view>> GgufFile::GetStringArray(std::string_view key) const {
  CAIRN_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type != GgufValueType::kArray || value->element_type != GgufValueType::kString) {
    return WrongType(key, *value, "array of string");
  }
  std::vector<std::string_view> strings;
  strings.reserve(value->count);
  // The parser has walked these lengths already.
  const std::byte* p = value->data.data();
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto size = Load<uint64_t>(p);
    strings.emplace_back(reinterpret_cast<const char*>(p + 8), size);
    p += 8 + size;
  }
  return strings;
}

Result<std::vector<int64_t>> GgufFile::GetIntArray(std::string_view key) const {
  CAIRN_ASSIGN_OR_RETURN(const Value* value, Find(key));
  const uint64_t size = ScalarBytes(value->element_type);
  if (value->type != GgufValueType::kArray || size == 0) {
    return WrongType(key, *value, "array of integers");
  }
  std::vector<int64_t> numbers;
  numbers.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<int64_t> number =
        LoadInt(value->element_type, value->data.data() + i * size);
    if (!number.has_value()) return WrongType(key, *value, "array of integers below 2^63");
    numbers.push_back(*number);
  }
  return numbers;
}

Result<std::vector<bool>> GgufFile::GetBoolArray(std::string_view key) const {
  CAIRN_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type != GgufValueType::kArray || value->element_type != GgufValueType::kBool) {
    return WrongType(key, *value, "array of bool");
  }
  std::vector<bool> flags;
  flags.reserve(value->count);
  for (const std::byte flag : value->data) flags.push_back(flag != std::byte{0});
  return flags;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace cairn::model
