#pragma once
// A GGUF file, mapped read-only: typed metadata and the tensor directory.
//
// Nothing in the file is trusted: every count, length, offset and type is checked before use, and
// an error names the byte offset and the key or tensor. Immutable after Open, so thread-safe.
// Strings and tensor data point into the mapping and live as long as the GgufFile. The file must
// not be truncated while it is open (replace it by rename).

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"
#include "cairn/kernels/weight_types.h"

namespace cairn::model {

// Value types as numbered in the file.
enum class GgufValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

struct GgufTensor {
  std::string_view name;
  kernels::WeightType type;
  // Innermost first: dims[0] numbers lie next to each other. 1 to 4 entries.
  std::vector<int64_t> dims;
  std::span<const std::byte> data;
};

class GgufFile {
 public:
  // NOT_FOUND or PERMISSION_DENIED: the file cannot be opened. DATA_LOSS: it is truncated or
  // corrupted. INVALID_ARGUMENT: it is not a GGUF file. UNIMPLEMENTED: its version or a tensor type
  // is not supported.
  static Result<std::unique_ptr<GgufFile>> Open(const std::string& path);
  // The same for bytes that the caller keeps alive. Error messages contain `name`.
  static Result<std::unique_ptr<GgufFile>> Parse(std::span<const std::byte> bytes,
                                                 std::string name);

  // Only the metadata, for questions that need no weights: tensors() stays empty, and tensors of
  // types that are not supported are no error. Otherwise as Open.
  static Result<std::unique_ptr<GgufFile>> OpenMetadata(const std::string& path);
  static Result<std::unique_ptr<GgufFile>> ParseMetadata(std::span<const std::byte> bytes,
                                                         std::string name);

  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  bool Has(std::string_view key) const { return values_.contains(key); }
  // All metadata keys, sorted.
  std::vector<std::string_view> Keys() const;

  // Typed getters. NOT_FOUND names the key. INVALID_ARGUMENT names the key, the type found and the
  // type expected. Any integer type is accepted if the value fits. A negative or too large value is
  // an error and never wraps around.
  Result<int64_t> GetInt(std::string_view key) const;
  Result<double> GetFloat(std::string_view key) const;
  Result<bool> GetBool(std::string_view key) const;
  Result<std::string_view> GetString(std::string_view key) const;
  Result<std::vector<std::string_view>> GetStringArray(std::string_view key) const;
  Result<std::vector<int64_t>> GetIntArray(std::string_view key) const;
  Result<std::vector<bool>> GetBoolArray(std::string_view key) const;

  // In file order.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  // Null when absent.
  const GgufTensor* FindTensor(std::string_view name) const;

  // The whole file.
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& name() const { return name_; }
  uint32_t version() const { return version_; }

 private:
  struct Value {
    GgufValueType type;
    GgufValueType element_type;  // The type of an array's elements.
    uint64_t count;              // The number of an array's elements.
    std::span<const std::byte> data;
  };
  class Parser;

  GgufFile() = default;
  enum class Content { kAll, kMetadata };
  static Result<std::unique_ptr<GgufFile>> Map(const std::string& path, Content content);
  static Result<std::unique_ptr<GgufFile>> Read(std::span<const std::byte> bytes, std::string name,
                                                Content content);
  // Fills everything below from bytes_; in gguf_parser.cc.
  Status ParseBytes(Content content);
  Result<const Value*> Find(std::string_view key) const;
  Status WrongType(std::string_view key, const Value& value, std::string_view expected) const;

  std::string name_;
  std::span<const std::byte> bytes_;
  void* mapping_ = nullptr;
  uint32_t version_ = 0;
  std::map<std::string_view, Value, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string_view, size_t, std::less<>> tensor_index_;
};

}  // namespace cairn::model
