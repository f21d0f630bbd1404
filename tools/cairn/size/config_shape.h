#pragma once
// The shape of a model from the config.json of transformers.
//
// Fields as transformers 5.19 writes them; older names are understood too. Nothing in the file is
// trusted: a value of the wrong type, or out of range, is an error that names the field.

#include <optional>
#include <string>
#include <string_view>

#include "cairn/common/status.h"
#include "tools/cairn/size/model_shape.h"

namespace cairn::cli::size {

// `text`: the file. `name`: for messages. `dtype`: of the KV; nullopt: the model's own, or f16 if
// the file does not say it. INVALID_ARGUMENT: no JSON, or a field that has another type or range
// than it must have. UNIMPLEMENTED: an architecture, or a kind of layer, that is not known: names
// what the file says.
Result<ModelShape> ShapeOfConfig(std::string_view text, const std::string& name,
                                 std::optional<DType> dtype);

}  // namespace cairn::cli::size
